"""The spot market: dated prices, availability traces, and the meter that converts machine time into dollars."""
