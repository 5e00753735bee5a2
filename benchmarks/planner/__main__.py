from benchmarks.planner.run import main

main()
