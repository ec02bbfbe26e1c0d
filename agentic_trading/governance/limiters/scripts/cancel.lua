-- Forget an attempt that was not sent: its place in the queue, or a permit that it got in the meantime.

drop_place(id)
leave('unused', -1, 0)
write()
