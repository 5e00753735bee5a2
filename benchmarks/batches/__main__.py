from benchmarks.batches.run import main

main()
