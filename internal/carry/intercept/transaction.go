package intercept

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// transaction is a change of a table of nftables that happens as a whole. The kernel answers
// its last message, and those that fail. To have each answered would cost as much as the change:
// the rules of many tunnels are thousands.
type transaction struct {
	table string
	batch []byte
	sets  uint32 // anonymous ones
	err   error

	messages int
}

// OwnPort is the netlink port from which this process changes nftables, so that it knows its own
// changes among those that the kernel tells of. The kernel itself chooses the numbers of processes.
var OwnPort = 1<<31 | rand.Uint32()

// answerBytes is room for the errors of a transaction. Tests have less.
var answerBytes = 1 << 20

const (
	// batchBytes is room for a transaction. In a user namespace net.core.wmem_max bounds it.
	batchBytes = 16 << 20
	// elementBytes bounds the elements of one message: an attribute has 16 bits for its length.
	elementBytes = 1 << 15
)

// Attributes that x/sys does not have.
const (
	setDescription   = 9 // NFTA_SET_DESC
	concatenation    = 2 // NFTA_SET_DESC_CONCAT
	fieldBytes       = 1 // NFTA_SET_FIELD_LEN
	setConcatenation = 0x80
	batchGeneration  = 1 // NFNL_BATCH_GENID
)

func newTransaction(table string) *transaction {
	t := &transaction{table: table}
	t.message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	return t
}

// newTransactionOf is of one generation of nftables: in another, commit fails with ERESTART.
func newTransactionOf(table string, generation uint32) *transaction {
	t := &transaction{table: table}
	t.message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, numberAttribute(batchGeneration, generation))
	return t
}

// message adds a message with these attributes.
func (t *transaction) message(kind, flags uint16, family byte, resource uint16, attributes ...[]byte) {
	t.messages++
	at := len(t.batch)
	b := append(t.batch, make([]byte, unix.NLMSG_HDRLEN)...)
	b = append(b, family, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, resource)
	for _, a := range attributes {
		b = append(b, a...)
	}
	binary.NativeEndian.PutUint32(b[at:], uint32(len(b)-at))
	binary.NativeEndian.PutUint16(b[at+4:], kind)
	binary.NativeEndian.PutUint16(b[at+6:], flags)
	t.batch = b
}

// do adds a message about the table.
func (t *transaction) do(kind, flags uint16, attributes ...[]byte) {
	t.message(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|flags, unix.NFPROTO_INET, 0, attributes...)
}

// attribute is a netlink attribute with the parts as its data.
func attribute(kind uint16, parts ...[]byte) []byte {
	b := make([]byte, unix.SizeofNlAttr, 64)
	for _, part := range parts {
		b = append(b, part...)
	}
	binary.NativeEndian.PutUint16(b, uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	return append(b, make([]byte, -len(b)&3)...)
}

func nested(kind uint16, parts ...[]byte) []byte { return attribute(kind|unix.NLA_F_NESTED, parts...) }

func textAttribute(kind uint16, text string) []byte { return attribute(kind, []byte(text), []byte{0}) }

func numberAttribute(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n))
}

func (t *transaction) addTable() {
	t.do(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, textAttribute(unix.NFTA_TABLE_NAME, t.table), numberAttribute(unix.NFTA_TABLE_FLAGS, 0))
}

func (t *transaction) deleteTable() {
	t.do(unix.NFT_MSG_DELTABLE, 0, textAttribute(unix.NFTA_TABLE_NAME, t.table))
}

// flush deletes the rules of the table.
func (t *transaction) flush() {
	t.do(unix.NFT_MSG_DELRULE, 0, textAttribute(unix.NFTA_RULE_TABLE, t.table))
}

func (t *transaction) flushChain(name string) {
	t.do(unix.NFT_MSG_DELRULE, 0, textAttribute(unix.NFTA_RULE_TABLE, t.table), textAttribute(unix.NFTA_RULE_CHAIN, name))
}

func (t *transaction) addChain(c chain) {
	attributes := [][]byte{textAttribute(unix.NFTA_CHAIN_TABLE, t.table), textAttribute(unix.NFTA_CHAIN_NAME, c.name)}
	if c.hook != nil {
		attributes = append(attributes,
			nested(unix.NFTA_CHAIN_HOOK, numberAttribute(unix.NFTA_HOOK_HOOKNUM, uint32(*c.hook)), numberAttribute(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))),
			numberAttribute(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept)),
			textAttribute(unix.NFTA_CHAIN_TYPE, string(nftables.ChainTypeFilter)))
	}
	t.do(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, attributes...)
}

func (t *transaction) deleteChain(name string) {
	t.do(unix.NFT_MSG_DELCHAIN, 0, textAttribute(unix.NFTA_CHAIN_TABLE, t.table), textAttribute(unix.NFTA_CHAIN_NAME, name))
}

func (t *transaction) addCounter(name string) {
	t.do(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, append(t.counter(name), nested(unix.NFTA_OBJ_DATA))...)
}

func (t *transaction) deleteCounter(name string) { t.do(unix.NFT_MSG_DELOBJ, 0, t.counter(name)...) }

func (t *transaction) counter(name string) [][]byte {
	return [][]byte{textAttribute(unix.NFTA_OBJ_TABLE, t.table), textAttribute(unix.NFTA_OBJ_NAME, name),
		numberAttribute(unix.NFTA_OBJ_TYPE, uint32(nftables.ObjTypeCounter))}
}

// deleteRule deletes a rule by the kernel's number.
func (t *transaction) deleteRule(chain string, handle uint64) {
	t.do(unix.NFT_MSG_DELRULE, 0, textAttribute(unix.NFTA_RULE_TABLE, t.table), textAttribute(unix.NFTA_RULE_CHAIN, chain),
		attribute(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle)))
}

// addRule adds a rule before the one of a number; 0: at the end of the chain.
func (t *transaction) addRule(chain string, r rule, before uint64) {
	var all [][]byte
	for _, s := range r {
		for _, e := range s.kernel(t) {
			encoded, err := expr.Marshal(unix.NFPROTO_INET, e)
			t.err = errors.Join(t.err, err)
			all = append(all, nested(unix.NFTA_LIST_ELEM, encoded))
		}
	}
	flags, place := uint16(unix.NLM_F_CREATE|unix.NLM_F_APPEND), []byte(nil)
	if before != 0 {
		flags, place = unix.NLM_F_CREATE, attribute(unix.NFTA_RULE_POSITION, binary.BigEndian.AppendUint64(nil, before))
	}
	t.do(unix.NFT_MSG_NEWRULE, flags,
		textAttribute(unix.NFTA_RULE_TABLE, t.table), textAttribute(unix.NFTA_RULE_CHAIN, chain), place, nested(unix.NFTA_RULE_EXPRESSIONS, all...))
}

// set adds an anonymous set, of ranges or of single values, and returns the expression that looks
// the value in register 1 up in it.
func (t *transaction) set(of nftables.SetDatatype, elements []nftables.SetElement, interval bool) *expr.Lookup {
	const anyName = "__set%d" // the kernel puts a number in
	t.sets++
	flags := uint32(unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT)
	if interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	t.addSet(anyName, t.sets, of, flags,
		nested(setDescription, numberAttribute(unix.NFTA_SET_DESC_SIZE, uint32(len(elements)))),
		attribute(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 2))) // for nft: the network's
	var list [][]byte
	size := 0
	send := func() {
		t.do(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, textAttribute(unix.NFTA_SET_ELEM_LIST_TABLE, t.table),
			textAttribute(unix.NFTA_SET_ELEM_LIST_SET, anyName), numberAttribute(unix.NFTA_SET_ELEM_LIST_SET_ID, t.sets),
			nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))
		list, size = nil, 0
	}
	for _, e := range elements {
		parts := [][]byte{nested(unix.NFTA_SET_ELEM_KEY, attribute(unix.NFTA_DATA_VALUE, e.Key))}
		if e.IntervalEnd {
			parts = append(parts, numberAttribute(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END))
		}
		one := nested(unix.NFTA_LIST_ELEM, parts...)
		if size += len(one); size > elementBytes {
			send()
		}
		list = append(list, one)
	}
	send()
	return &expr.Lookup{SourceRegister: 1, SetName: anyName, SetID: t.sets}
}

func (t *transaction) addSet(name string, id uint32, of nftables.SetDatatype, flags uint32, more ...[]byte) {
	t.do(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, append([][]byte{
		textAttribute(unix.NFTA_SET_TABLE, t.table), textAttribute(unix.NFTA_SET_NAME, name),
		numberAttribute(unix.NFTA_SET_FLAGS, flags), numberAttribute(unix.NFTA_SET_ID, id),
		numberAttribute(unix.NFTA_SET_KEY_TYPE, of.GetNFTMagic()), numberAttribute(unix.NFTA_SET_KEY_LEN, of.Bytes),
	}, more...)...)
}

func (t *transaction) deleteSet(name string) {
	t.do(unix.NFT_MSG_DELSET, 0, textAttribute(unix.NFTA_SET_TABLE, t.table), textAttribute(unix.NFTA_SET_NAME, name))
}

// sent counts the messages of this process's transactions, for tests.
var sent atomic.Int64

// commit makes the change. It returns the kernel's first error; nothing has changed then.
func (t *transaction) commit() error {
	if t.err != nil {
		return t.err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	setRoom(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, batchBytes)
	setRoom(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, answerBytes)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // errors without the message: more find room
	// While another transaction of this process has the port, the kernel chooses one.
	_ = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: OwnPort})
	t.acknowledge()
	sent.Add(int64(t.messages))
	t.message(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if err := unix.Sendto(fd, t.batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	return answers(fd)
}

func setRoom(fd, force, plain, bytes int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bytes) != nil { // in a user namespace
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, bytes)
	}
}

// acknowledge has the last message answered.
func (t *transaction) acknowledge() {
	last := 0
	for next := 0; next < len(t.batch); next += int(binary.NativeEndian.Uint32(t.batch[next:])) {
		last = next
	}
	flags := t.batch[last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

// answers reads what the kernel has answered when the transaction was sent: it makes it
// meanwhile.
func answers(fd int) (first error) {
	buffer := make([]byte, os.Getpagesize())
	done := false
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN && first == nil && !done:
			return errors.New("nftables has not answered")
		case err == unix.EAGAIN:
			return first
		case err != nil: // ENOBUFS: errors found no room
			if first == nil {
				first = os.NewSyscallError("recvfrom", err)
			}
			continue
		}
		for b := buffer[:n]; len(b) >= unix.NLMSG_HDRLEN+4; {
			length := int(binary.NativeEndian.Uint32(b))
			if length < unix.NLMSG_HDRLEN+4 || length > len(b) {
				break
			}
			if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
				code := int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:]))
				if done = done || code == 0; code < 0 && (first == nil || errors.Is(first, unix.ENOBUFS)) {
					first = unix.Errno(-code)
				}
			}
			b = b[min((length+3)&^3, len(b)):]
		}
	}
}
