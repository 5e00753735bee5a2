from benchmarks.pipeline_local.run import main

main()
