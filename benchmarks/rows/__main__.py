from benchmarks.rows.run import main

main()
