from benchmarks.overhead.run import main

main()
