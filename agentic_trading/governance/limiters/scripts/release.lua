-- End a permit. An unknown one is ignored.
-- ARGV[3..5]: outcome, tokens really used (-1: all that were taken), the cooldown that the provider asked for in ms (0: none).

leave(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
write()
