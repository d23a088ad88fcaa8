package pcap

import (
	"encoding/binary"
	"net/netip"
)

// header is the kind of a header before TCP's payload.
type header uint8

const (
	noHeader header = iota
	hEthernet
	hSLL
	hSLL2
	hFamily // of BSD's loopback: an address family before IP
	hDirection
	hCiscoHDLC
	hVLAN
	hETag
	hVNTag
	hService
	hFabricPath
	hLLC
	hMPLS
	hPPPoE
	hPPP
	hIP // of either version
	hIPv4
	hIPv6
	hExtension
	hFragment
	hAuthentication
	hGRE
	hERSPAN2
	hERSPAN3
	hEtherIP
	hVXLAN
	hGeneve
	hGTP
	hUDP
	hTCP
)

// readable lists the supported link types with their first header.
var readable = map[linkType]header{
	linkNull: hFamily, linkLoop: hFamily,
	linkEthernet: hEthernet,
	linkSLL:      hSLL, linkSLL2: hSLL2,
	linkRaw: hIP, linkRawBSD: hIP, linkRawOpenBSD: hIP,
	linkIPv4: hIP, linkIPv6: hIP,
	linkPPP: hPPP, linkPPPHDLC: hPPP, linkPPPDirection: hDirection,
	linkPPPEthernet: hPPPoE, linkCiscoHDLC: hCiscoHDLC, linkATM: hLLC,
}

// byType maps Ethernet types to headers.
var byType = map[etherType]header{
	typeIPv4: hIPv4, typeIPv6: hIPv6,
	typeVLAN: hVLAN, typeQinQ: hVLAN, typeQinQ9100: hVLAN, typeQinQ9200: hVLAN,
	typeETag: hETag, typeVNTag: hVNTag, typeService: hService, typeFabricPath: hFabricPath,
	typeMPLS: hMPLS, typeMPLSMulticast: hMPLS,
	typePPPoE: hPPPoE, typePPP: hPPP,
	typeEthernet: hEthernet,
	typeERSPAN2:  hERSPAN2, typeERSPAN3: hERSPAN3,
}

// byProtocol maps IP protocols to headers.
var byProtocol = map[ipProtocol]header{
	protoTCP: hTCP, protoUDP: hUDP,
	protoIPv4: hIPv4, protoIPv6: hIPv6,
	protoGRE: hGRE, protoMPLS: hMPLS, protoEtherIP: hEtherIP,
	protoAH: hAuthentication,
}

// extensions are IPv6's headers that only precede others (RFC 8200, section 4).
var extensions = map[ipProtocol]bool{
	protoHopByHop: true, protoRouting: true, protoDestination: true,
}

// Contents that are named in several places.
const (
	greUnknown    = "GRE with unknown content"
	mplsUnknown   = "MPLS with unknown content"
	geneveUnknown = "Geneve with unknown content"
	tooDeep       = "more headers than are read"
	otherType     = "another Ethernet type"
)

// maxHeaders bounds the headers of a packet. Real packets have fewer than twenty.
const maxHeaders = 32

// place is a header in a record.
type place struct {
	header header
	at     int // its offset
}

// decoder decodes packets up to the TCP header of the innermost.
type decoder struct {
	data   []byte // the record, up to the end of what the headers so far enclose
	at     int    // offset of the next header
	wire   int    // length of the record on the wire
	cut    bool   // the record has less than the wire
	places []place
	// content says what a packet without TCP carries.
	content string

	// Of the latest IP header.
	src, dst netip.Addr
	end      int // where its payload ends on the wire
}

// decode decodes a record up to its TCP header.
func (d *decoder) decode(r record, p *packet) verdict {
	*p = packet{wscale: -1, device: r.device}
	d.data, d.at, d.wire, d.cut = r.data, 0, r.wire, len(r.data) < r.wire
	d.places, d.content, d.end = d.places[:0], "", r.wire
	next := readable[r.link]
	for range maxHeaders {
		d.places = append(d.places, place{next, d.at})
		if next == hTCP {
			return d.segment(p)
		}
		var v verdict
		if next, v = d.step(next, p); v != isTCP {
			return v
		}
	}
	return d.without(tooDeep)
}

// step decodes a header, and returns the next one.
func (d *decoder) step(h header, p *packet) (header, verdict) {
	switch h {
	case hEthernet:
		return d.frame()
	case hSLL, hSLL2:
		return d.cooked(h, p)
	case hFamily:
		// The address family is in the capturing host's byte order and numbering; the IP
		// version is equivalent.
		return d.over(4, hIP)
	case hDirection:
		return d.over(1, hPPP)
	case hCiscoHDLC:
		return d.typed(2, 4)
	case hVLAN:
		return d.tag(p)
	case hETag:
		return d.typed(6, 8)
	case hVNTag:
		return d.typed(4, 6)
	case hService:
		return d.service(p)
	case hFabricPath:
		return d.over(2, hEthernet)
	case hLLC:
		return d.snap()
	case hMPLS:
		return d.label(p)
	case hPPPoE:
		return d.session(p)
	case hPPP:
		return d.ppp()
	case hIP:
		return d.ip()
	case hIPv4:
		return d.four(p)
	case hIPv6:
		return d.six(p)
	case hExtension:
		return d.extension(p)
	case hFragment:
		return d.fragment(p)
	case hAuthentication:
		return d.authentication(p)
	case hGRE:
		return d.tunnel(p)
	case hERSPAN2:
		return d.over(8, hEthernet)
	case hERSPAN3:
		return d.mirror()
	case hEtherIP:
		return d.over(2, hEthernet)
	case hUDP:
		return d.datagram()
	case hVXLAN:
		return d.virtual(p)
	case hGeneve:
		return d.geneve(p)
	case hGTP:
		return d.mobile(p)
	}
	return noHeader, d.without("another protocol")
}

// rest is what follows the headers so far.
func (d *decoder) rest() []byte { return d.data[d.at:] }

// without says what a packet without TCP carries.
func (d *decoder) without(content string) verdict {
	d.content = content
	return notTCP
}

// short is the verdict on an incomplete or invalid header.
func (d *decoder) short() (header, verdict) {
	if d.cut {
		return noHeader, headersCut
	}
	return noHeader, malformed
}

// over passes over n bytes.
func (d *decoder) over(n int, next header) (header, verdict) {
	if len(d.rest()) <= n {
		return d.short()
	}
	d.at += n
	return next, isTCP
}

// limit ends the data n bytes after the next header, if it goes on so far.
func (d *decoder) limit(n int) { d.data = d.data[:min(d.at+n, len(d.data))] }

// typed goes on after n bytes with an Ethernet type at an offset in them.
func (d *decoder) typed(offset, n int) (header, verdict) {
	rest := d.rest()
	if len(rest) < n {
		return d.short()
	}
	d.at += n
	return d.ofType(etherType(binary.BigEndian.Uint16(rest[offset:])), otherType)
}

// ofType returns the header of an Ethernet type, or says that the content is another.
func (d *decoder) ofType(t etherType, other string) (header, verdict) {
	if h := byType[t]; h != noHeader {
		return h, isTCP
	}
	switch {
	case t < firstType:
		return hLLC, isTCP
	case t == typeARP:
		other = "ARP"
	case t == typePPPoEDiscovery:
		other = "PPPoE discovery"
	case t == typeLLDP:
		other = "LLDP"
	}
	return noHeader, d.without(other)
}

func (d *decoder) frame() (header, verdict) { return d.framed(12, 14) }

// framed is typed where a length may stand in place of the type.
func (d *decoder) framed(offset, n int) (header, verdict) {
	rest := d.rest()
	next, v := d.typed(offset, n)
	if next == hLLC {
		d.limit(int(binary.BigEndian.Uint16(rest[offset:])))
	}
	return next, v
}

// cookedBits are the bits of a device by a header of Linux: a file may have several
// interfaces with such headers.
const cookedBits = 40

// cooked decodes a header of Linux for several devices.
func (d *decoder) cooked(h header, p *packet) (header, verdict) {
	rest := d.rest()
	if h == hSLL {
		if len(rest) < 16 || binary.BigEndian.Uint16(rest[4:]) > 8 { // the address's length
			return d.short()
		}
		p.device = p.device<<cookedBits | int(binary.BigEndian.Uint16(rest))
		return d.typed(14, 16)
	}
	if len(rest) < 20 || rest[11] > 8 {
		return d.short()
	}
	p.device = p.device<<cookedBits | int(binary.BigEndian.Uint32(rest[4:]))<<8 | int(rest[10])
	return d.typed(0, 20)
}

func (d *decoder) tag(p *packet) (header, verdict) {
	if rest := d.rest(); len(rest) >= 4 {
		if id := binary.BigEndian.Uint16(rest) & 0xfff; id != 0 { // with 0 it only has a priority
			p.network.within(inVLAN, uint32(id))
		}
	}
	return d.framed(2, 4)
}

// service decodes the tag of a service of provider bridges.
func (d *decoder) service(p *packet) (header, verdict) {
	if rest := d.rest(); len(rest) >= 4 {
		p.network.within(inService, binary.BigEndian.Uint32(rest)&0xffffff)
	}
	return d.over(4, hEthernet)
}

// snap decodes LLC and SNAP (RFC 1042).
func (d *decoder) snap() (header, verdict) {
	rest := d.rest()
	if len(rest) >= 3 && (rest[0] != 0xaa || rest[1] != 0xaa || rest[2] != 3) {
		return noHeader, d.without("LLC")
	}
	if len(rest) >= 8 && binary.BigEndian.Uint16(rest[6:]) < uint16(firstType) {
		return noHeader, d.without("LLC")
	}
	return d.typed(6, 8)
}

// label decodes a label of MPLS (RFC 3032). Labels have no network: each hop and each
// direction has its own.
func (d *decoder) label(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 5 {
		return d.short()
	}
	d.at += 4
	if rest[2]&1 == 0 {
		return hMPLS, isTCP
	}
	p.network.within(inMPLS, 0)
	switch rest[4] >> 4 {
	case 4:
		return hIPv4, isTCP
	case 6:
		return hIPv6, isTCP
	}
	return noHeader, d.without(mplsUnknown)
}

// session decodes a PPPoE header (RFC 2516).
func (d *decoder) session(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 7 {
		return d.short()
	}
	p.network.within(inPPPoE, uint32(binary.BigEndian.Uint16(rest[2:])))
	d.at += 6
	d.limit(int(binary.BigEndian.Uint16(rest[4:])))
	return hPPP, isTCP
}

// ppp decodes a header of PPP (RFC 1661, RFC 1662), or of Cisco's HDLC in its place.
func (d *decoder) ppp() (header, verdict) {
	rest := d.rest()
	switch {
	case len(rest) < 4:
		return d.short()
	case rest[0] == 0x0f, rest[0] == 0x8f:
		return d.typed(2, 4)
	case rest[0] == 0xff && rest[1] == 3:
		rest, d.at = rest[2:], d.at+2
	}
	protocol, n := binary.BigEndian.Uint16(rest), 2
	if rest[0]&1 != 0 { // compressed
		protocol, n = uint16(rest[0]), 1
	}
	d.at += n
	switch protocol {
	case 0x21:
		return hIPv4, isTCP
	case 0x57:
		return hIPv6, isTCP
	case 0x281, 0x283:
		return hMPLS, isTCP
	}
	return noHeader, d.without("PPP with other content")
}

// ip decides between the versions.
func (d *decoder) ip() (header, verdict) {
	if len(d.rest()) == 0 {
		return d.short()
	}
	switch d.rest()[0] >> 4 {
	case 4:
		return hIPv4, isTCP
	case 6:
		return hIPv6, isTCP
	}
	return noHeader, d.without("another protocol")
}

// inside returns the header of an IP protocol. Within IP, IP is in a network of its own.
func (d *decoder) inside(protocol ipProtocol, p *packet) (header, verdict) {
	if h := byProtocol[protocol]; h != noHeader {
		switch h {
		case hIPv4, hIPv6, hEtherIP:
			p.network.within(inIP, 0)
		}
		return h, isTCP
	}
	name := "another IP protocol"
	switch protocol {
	case protoICMPv4, protoICMPv6:
		name = "ICMP"
	case protoIGMP:
		name = "IGMP"
	case protoESP:
		name = "IPsec (ESP)"
	case protoSCTP:
		name = "SCTP"
	}
	return noHeader, d.without(name)
}

func (d *decoder) four(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 20 || rest[0]>>4 != 4 {
		return d.short()
	}
	header, length := int(rest[0]&15)*4, int(binary.BigEndian.Uint16(rest[2:]))
	d.end = d.at + length
	if length == 0 { // longer than the field can express
		length, d.end = len(rest), d.wire
	}
	if header < 20 || header > min(length, len(rest)) || !validOptions4(rest[20:header]) {
		return d.short()
	}
	d.limit(length)
	d.at += header
	d.src, d.dst = netip.AddrFrom4([4]byte(rest[12:])), netip.AddrFrom4([4]byte(rest[16:]))
	p.ipID, p.ttl = binary.BigEndian.Uint16(rest[4:]), rest[8]
	next, v := d.inside(ipProtocol(rest[9]), p)
	offset := binary.BigEndian.Uint16(rest[6:])
	// The first fragment of a tunnel's packet has the headers of the packet in it.
	if v == isTCP && (offset&0x1fff > 0 || next == hTCP && offset&0x2000 != 0) {
		return noHeader, isFragment
	}
	return next, v
}

// validOptions4 reports whether the options of an IPv4 header have valid lengths.
func validOptions4(b []byte) bool {
	for len(b) > 0 && b[0] != 0 {
		n := 1
		if b[0] != 1 {
			if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
				return false
			}
			n = int(b[1])
		}
		b = b[n:]
	}
	return true
}

func (d *decoder) six(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 40 || rest[0]>>4 != 6 {
		return d.short()
	}
	// Linux sets length 0 without the jumbo option for its largest super-packets.
	d.end = d.wire
	if n := 40 + int(binary.BigEndian.Uint16(rest[4:])); n > 40 {
		d.end = d.at + n
		d.limit(n)
	}
	d.at += 40
	d.src, d.dst = netip.AddrFrom16([16]byte(rest[8:])), netip.AddrFrom16([16]byte(rest[24:]))
	p.ipID, p.ttl = 0, rest[7]
	return d.after(ipProtocol(rest[6]), p)
}

// after returns the header behind one of IPv6's.
func (d *decoder) after(protocol ipProtocol, p *packet) (header, verdict) {
	switch {
	case extensions[protocol]:
		return hExtension, isTCP
	case protocol == protoFragment:
		return hFragment, isTCP
	}
	return d.inside(protocol, p)
}

func (d *decoder) extension(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 2 || len(rest) < int(rest[1])*8+8 {
		return d.short()
	}
	d.at += int(rest[1])*8 + 8
	return d.after(ipProtocol(rest[0]), p)
}

// fragment decodes IPv6's header of a fragment (RFC 8200, section 4.5).
func (d *decoder) fragment(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 8 {
		return d.short()
	}
	offset, more := binary.BigEndian.Uint16(rest[2:])>>3, rest[3]&1 != 0
	d.at += 8
	next, v := d.inside(ipProtocol(rest[0]), p)
	if v == isTCP && (offset > 0 || next == hTCP && more) {
		return noHeader, isFragment
	}
	return next, v
}

// authentication passes over a header of IPsec that encrypts nothing (RFC 4302).
func (d *decoder) authentication(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 12 || len(rest) < (int(rest[1])+2)*4 {
		return d.short()
	}
	d.at += (int(rest[1]) + 2) * 4
	return d.inside(ipProtocol(rest[0]), p)
}

// tunnel decodes a header of GRE (RFC 2784, RFC 2890, RFC 2637).
func (d *decoder) tunnel(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 4 {
		return d.short()
	}
	flags, protocol := rest[0], etherType(binary.BigEndian.Uint16(rest[2:]))
	enhanced := rest[1]&7 == 1
	n, key := 4, uint32(0)
	if flags&(greChecksum|greRouting) != 0 {
		n += 4
	}
	if flags&greKey != 0 {
		if len(rest) >= n+4 && !enhanced { // there it is a length, and the number of the call at the receiver
			key = binary.BigEndian.Uint32(rest[n:])
		}
		n += 4
	}
	if flags&greSequence != 0 {
		n += 4
	}
	for routing := flags&greRouting != 0; routing; { // up to an empty route
		if len(rest) < n+4 {
			return d.short()
		}
		routing = rest[n] != 0 || rest[n+1] != 0 || rest[n+3] != 0
		n += 4 + int(rest[n+3])
	}
	if enhanced && rest[1]&greAcknowledged != 0 {
		n += 4
	}
	if len(rest) < n {
		return d.short()
	}
	d.at += n
	next, v := d.ofType(protocol, greUnknown)
	switch {
	case v != isTCP, next == hLLC:
		return noHeader, d.without(greUnknown)
	case next == hERSPAN2 && flags&greSequence == 0: // of type I, without a header
		next = hEthernet
	case next == hERSPAN2, next == hERSPAN3:
	default:
		p.network.within(inGRE, key)
	}
	return next, v
}

// Flags of GRE, the last one in the second byte.
const (
	greChecksum     = 0x80
	greRouting      = 0x40
	greKey          = 0x20
	greSequence     = 0x10
	greAcknowledged = 0x80
)

// mirror decodes a header of ERSPAN type III.
func (d *decoder) mirror() (header, verdict) {
	n := 12
	if rest := d.rest(); len(rest) >= n && rest[11]&1 != 0 {
		n += 8
	}
	return d.over(n, hEthernet)
}

// Ports of UDP. 8472 is Linux's for VXLAN, without another one given.
const (
	portVXLAN      = 4789
	portVXLANLinux = 8472
	portGeneve     = 6081
	portGTP        = 2152
)

// onPort names what a port of UDP usually has.
var onPort = map[uint16]string{
	53: "DNS", 443: "UDP port 443 (QUIC)", 1194: "OpenVPN", 1701: "L2TP", 4500: "IPsec in UDP",
}

func (d *decoder) datagram() (header, verdict) {
	rest := d.rest()
	if len(rest) < 8 {
		return d.short()
	}
	from, to := binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	length := int(binary.BigEndian.Uint16(rest[4:]))
	switch {
	case length >= 8:
		d.limit(length)
	case length > 0: // 0 is longer than the field can express
		return d.short()
	}
	d.at += 8
	rest = d.rest()
	switch to {
	case portVXLAN, portVXLANLinux:
		if len(rest) < 8 || rest[0]&8 != 0 { // the bit of a valid number
			return hVXLAN, isTCP
		}
	case portGeneve:
		return hGeneve, isTCP
	case portGTP:
		if len(rest) < 2 || rest[0]>>4 == 3 && rest[1] == 255 { // version 1, a packet of a user
			return hGTP, isTCP
		}
	}
	if isWireGuard(rest, length-8) {
		return noHeader, d.without("WireGuard")
	}
	for _, port := range []uint16{to, from} {
		if name := onPort[port]; name != "" {
			return noHeader, d.without(name)
		}
	}
	return noHeader, d.without("UDP")
}

// isWireGuard recognises a message of WireGuard by its type and length.
func isWireGuard(b []byte, length int) bool {
	if len(b) < 4 || b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return false
	}
	switch b[0] {
	case 1:
		return length == 148
	case 2:
		return length == 92
	case 3:
		return length == 64
	case 4:
		return length >= 32 && length%16 == 0
	}
	return false
}

func (d *decoder) virtual(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 8 {
		return d.short()
	}
	p.network.within(inVXLAN, binary.BigEndian.Uint32(rest[4:])>>8)
	d.at += 8
	return hEthernet, isTCP
}

// geneve decodes a header of Geneve (RFC 8926).
func (d *decoder) geneve(p *packet) (header, verdict) {
	rest := d.rest()
	if len(rest) < 8 {
		return d.short()
	}
	n := 8 + int(rest[0]&0x3f)*4
	if rest[0]>>6 != 0 {
		return noHeader, d.without("UDP")
	}
	if len(rest) < n {
		return d.short()
	}
	p.network.within(inGeneve, binary.BigEndian.Uint32(rest[4:])>>8)
	d.at += n
	next, v := d.ofType(etherType(binary.BigEndian.Uint16(rest[2:])), geneveUnknown)
	if next == hLLC {
		return noHeader, d.without(geneveUnknown)
	}
	return next, v
}

// mobile decodes a header of GTP-U (3GPP TS 29.281). Each direction has its own number of
// the tunnel.
func (d *decoder) mobile(p *packet) (header, verdict) {
	rest := d.rest()
	n, extension := 8, byte(0)
	if len(rest) < n {
		return d.short()
	}
	if rest[0]&7 != 0 { // more fields
		if n = 12; len(rest) < n {
			return d.short()
		}
		if rest[0]&4 != 0 {
			extension = rest[11]
		}
	}
	for extension != 0 {
		if n >= len(rest) || rest[n] == 0 || n+int(rest[n])*4 > len(rest) {
			return d.short()
		}
		n += int(rest[n]) * 4
		extension = rest[n-1]
	}
	p.network.within(inGTP, 0)
	return d.over(n, hIP)
}
