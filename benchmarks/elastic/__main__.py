from benchmarks.elastic.run import main

main()
