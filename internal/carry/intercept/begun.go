package intercept

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A listener whose queue of SYNs is full answers with SYN cookies (RFC 4987, 3.6) and
// keeps nothing. The client's next segment then belongs to no socket, and would pass to
// the target, which resets the connection. So a set has the connections whose SYN the
// listener got, for as long as their next segment may take; such a segment goes to the
// listener too. Connections that went directly are not in the set.

const (
	// begunSize bounds the set, about 120 bytes each.
	begunSize = 1 << 17
	// begunFor is how long a connection stays in the set: several round trips between
	// client and relay. With begunSize it is room for 26 000 SYNs a second.
	begunFor = 5 * time.Second
)

// begun is the name of the family's set.
func (f family) begun() string { return "begun-" + f.name }

// begunType is the key of the set: source, its port, destination, its port.
func (f family) begunType() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.set, nftables.TypeInetService, f.set, nftables.TypeInetService)
}

func (f family) begunText() string {
	return fmt.Sprintf("{ type %s ; size %d ; flags dynamic,timeout ; timeout %ds ; }", f.begunType().Name, begunSize, int(begunFor.Seconds()))
}

func (f family) addBegun(t *transaction) {
	var fields [][]byte
	for _, part := range nftables.ConcatSetTypeElements(f.begunType()) { // without their lengths nft cannot list the set
		fields = append(fields, nested(unix.NFTA_LIST_ELEM, numberAttribute(fieldBytes, part.Bytes)))
	}
	t.addSet(f.begun(), 0, f.begunType(), unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT|setConcatenation,
		attribute(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(begunFor.Milliseconds()))),
		nested(setDescription, numberAttribute(unix.NFTA_SET_DESC_SIZE, begunSize), nested(concatenation, fields...)))
}

// connection loads the key of the set, each part on a register's border.
func (f family) connection() (text string, load []expr.Any) {
	length := uint32(f.bits / 8)
	const portBytes, wordBytes = 2, 4
	register := uint32(unix.NFT_REG32_00)
	add := func(base expr.PayloadBase, offset, length uint32) {
		load = append(load, &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length})
		register += (length + wordBytes - 1) / wordBytes
	}
	add(expr.PayloadBaseNetworkHeader, f.source, length)
	add(expr.PayloadBaseTransportHeader, 0, portBytes)
	add(expr.PayloadBaseNetworkHeader, f.source+length, length)
	add(expr.PayloadBaseTransportHeader, portBytes, portBytes)
	return fmt.Sprintf("%[1]s saddr . tcp sport . %[1]s daddr . tcp dport", f.word), load
}

// change is a statement that changes the set by a packet's connection.
func (f family) change(word string, operation uint32) statement {
	text, load := f.connection()
	return plain(fmt.Sprintf("%s @%s { %s }", word, f.begun(), text), slices.Concat(f.expressions(), l4tcp, load,
		[]expr.Any{&expr.Dynset{SrcRegKey: unix.NFT_REG32_00, SetName: f.begun(), Operation: operation}})...)
}

// take is the chain of SYNs that have the listener. One that finds no room in the set is
// dropped, and its client sends it again: to pass it would undo when_down: refuse.
func (f family) take() chain {
	remember := f.change("update", unix.NFT_DYNSET_OP_UPDATE)
	return chain{name: "take-" + f.name, rules: []rule{{remember, notrack, accept}, {drop}}}
}

// forget takes a connection out of the set whose SYN comes again, since that one may go
// directly: take adds it anew.
func (f family) forget() rule {
	const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE
	return rule{f.change("delete", dynsetDelete)}
}

// completes gives the listener the segments of connections in the set that have no
// socket, as the answers to its SYN cookies.
func (f family) completes(t Tunnel) rule {
	text, load := f.connection()
	isBegun := plain(text+" @"+f.begun(), slices.Concat(f.expressions(), load,
		[]expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: f.begun()}})...)
	return rule{acknowledges, isBegun, f.tproxy(f.port(t), "PORT"), notrack, accept}
}

// acknowledges matches segments that acknowledge a SYN, with or without data.
var acknowledges = flags("syn | rst | ack", 0x16, "ack", 0x10)

// signatures match the options of TCP with which each segment is signed for the addresses,
// ports and sequence numbers of the two ends: MD5 (RFC 2385) and TCP-AO (RFC 5925).
var signatures = []statement{hasOption("md5sig", 19), hasOption("29", 29)}

func hasOption(word string, kind uint8) statement {
	return plain("tcp option "+word+" exists", append(slices.Clip(l4tcp),
		&expr.Exthdr{DestRegister: 1, Type: kind, Len: 1, Op: expr.ExthdrOpTcpopt, Flags: unix.NFT_EXTHDR_F_PRESENT},
		equal(1))...)
}
