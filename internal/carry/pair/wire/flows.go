package wire

import (
	"encoding/binary"
	"math"
)

// Flows are numbers of flows, ascending: the first one, then the difference to the one before, each as
// a uvarint.
type Flows string

// maxFlows bounds Flows, in bytes: beside the longest texts of a far end's HELLO there is room for them.
const maxFlows = 400

// AppendFlow appends a number that is larger than all before it; last is the latest of these, or 0. It
// reports false if there is no room.
func (f Flows) AppendFlow(number, last uint64) (Flows, bool) {
	longer := string(binary.AppendUvarint([]byte(f), number-last))
	return Flows(longer), len(longer) <= maxFlows
}

// valid reports that these are one number or more, each as it has to be.
func (f Flows) valid() bool {
	all, ok := f.numbers()
	return ok && len(all) > 0
}

// Numbers are the numbers. Of others than package wire has read or made there are none.
func (f Flows) Numbers() []uint64 {
	all, _ := f.numbers()
	return all
}

func (f Flows) numbers() (all []uint64, ok bool) {
	if len(f) > maxFlows {
		return nil, false
	}
	last := uint64(0)
	for b := []byte(f); len(b) > 0; {
		by, n := binary.Uvarint(b)
		if n <= 0 || by == 0 || by > math.MaxUint64-last {
			return nil, false
		}
		last += by
		all, b = append(all, last), b[n:]
	}
	return all, true
}
