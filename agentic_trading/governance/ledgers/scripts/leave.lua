-- Leave the queue, and wake the next.
wake(leave(ARGV[FIRST]))
return answer('DONE')
