# integration, parity, fuzz, hostile, bench
