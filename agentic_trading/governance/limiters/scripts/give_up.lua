-- Forget an attempt that was not sent: its place in line, or the permit it was given meanwhile.

drop_place(id)
leave('unused', -1, 0)
write()
