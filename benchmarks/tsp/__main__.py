from benchmarks.tsp.run import main

main()
