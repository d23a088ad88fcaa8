package link

// Direction is one of the two ways through a link.
type Direction uint8

// The directions of a link between ports a and b.
const (
	AToB Direction = iota
	BToA
)

// String returns "a-to-b" or "b-to-a".
func (d Direction) String() string {
	if d == AToB {
		return "a-to-b"
	}
	return "b-to-a"
}

func (d Direction) reverse() Direction { return 1 - d }
