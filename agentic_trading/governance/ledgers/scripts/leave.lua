-- Leave the line; whoever is next may look.
wake(leave(ARGV[FIRST]))
return answer('DONE')
