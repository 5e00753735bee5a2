from benchmarks.solvers.run import main

main()
