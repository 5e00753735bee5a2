from benchmarks.demo.run import main

main()
