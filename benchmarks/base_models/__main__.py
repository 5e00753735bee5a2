from benchmarks.base_models.run import main

main()
