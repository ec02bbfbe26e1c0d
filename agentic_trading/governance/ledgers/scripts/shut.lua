-- Let nothing more be reserved or sent until the log is booked; what is under way may end.
if not closed then
  closed = REBUILDING
  redis.call('HSET', META, 'closed', closed)
end
return answer('DONE')
