from benchmarks.newcomer.run import main

main()
