"""Money and weather: dated prices, availability traces, the meter that turns machine time into dollars."""
