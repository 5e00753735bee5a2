from benchmarks.crew_steps.run import main

main()
