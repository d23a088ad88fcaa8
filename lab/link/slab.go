package link

// slab is a block of memory for consecutive packets. It is reused when the last
// of them is gone.
type slab struct {
	memory []byte
	used   int
	refs   int // packets in it, and one while it is being filled
}

const (
	slabBytes = 1 << 20
	// spareSlabs is the number of empty slabs kept, so that a steady flow
	// allocates nothing. Others return to the runtime.
	spareSlabs = 64
)

// arena allocates packet memory. One goroutine owns it.
type arena struct {
	current     *slab
	spare       []*slab
	spareSupers []*superPacket
}

// room returns at least n bytes of free memory.
func (a *arena) room(n int) []byte {
	if a.current == nil || len(a.current.memory)-a.current.used < n {
		if a.current != nil {
			a.unref(a.current)
		}
		if last := len(a.spare) - 1; last >= 0 {
			a.current, a.spare = a.spare[last], a.spare[:last]
		} else {
			a.current = &slab{memory: make([]byte, slabBytes)}
		}
		a.current.used, a.current.refs = 0, 1
	}
	return a.current.memory[a.current.used:]
}

// take makes a super-packet from the first n bytes of the room. The packet
// begins after skip bytes.
func (a *arena) take(skip, n int, h vnetHeader) *superPacket {
	s := a.current
	packet := s.memory[s.used+skip : s.used+n : s.used+n]
	s.used += (n + 7) &^ 7
	s.used = min(s.used, len(s.memory))
	s.refs++
	var super *superPacket
	if last := len(a.spareSupers) - 1; last >= 0 {
		super, a.spareSupers = a.spareSupers[last], a.spareSupers[:last]
	} else {
		super = new(superPacket)
	}
	super.parse(packet, h)
	super.slab = s
	return super
}

func (a *arena) recycle(super *superPacket) {
	a.unref(super.slab)
	*super = superPacket{}
	a.spareSupers = append(a.spareSupers, super)
}

func (a *arena) unref(s *slab) {
	s.refs--
	if s.refs == 0 && len(a.spare) < spareSlabs {
		a.spare = append(a.spare, s)
	}
}
