from benchmarks.learning_fit.run import main

main()
