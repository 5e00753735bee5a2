from benchmarks.fidelity.run import main

main()
