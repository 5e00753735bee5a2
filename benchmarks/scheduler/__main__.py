from benchmarks.scheduler.run import main

main()
