-- Forget an attempt that was not sent: its place in the queue, or the permit it was given meanwhile.

drop_place(id)
leave('unused', -1, 0)
write()
