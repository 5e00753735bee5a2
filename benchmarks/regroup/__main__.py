from benchmarks.regroup.run import main

main()
