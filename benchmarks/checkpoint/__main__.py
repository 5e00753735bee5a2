from benchmarks.checkpoint.run import main

main()
