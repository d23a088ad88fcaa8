package pcap

// linkType is a link type of a capture file, as tcpdump.org's list numbers it.
type linkType uint16

const (
	linkNull         linkType = 0
	linkEthernet     linkType = 1
	linkTokenRing    linkType = 6
	linkPPP          linkType = 9
	linkFDDI         linkType = 10
	linkRawBSD       linkType = 12
	linkRawOpenBSD   linkType = 14
	linkPPPHDLC      linkType = 50
	linkPPPEthernet  linkType = 51
	linkATM          linkType = 100
	linkRaw          linkType = 101
	linkCiscoHDLC    linkType = 104
	link80211        linkType = 105
	linkFrameRelay   linkType = 107
	linkLoop         linkType = 108
	linkSLL          linkType = 113
	linkPFLog        linkType = 117
	linkPrism        linkType = 119
	linkRadiotap     linkType = 127
	linkPPPDirection linkType = 204 // PPP after a byte for the direction
	linkUSB          linkType = 220
	linkIPv4         linkType = 228
	linkIPv6         linkType = 229
	linkSLL2         linkType = 276
)

// etherType is an Ethernet type. Below firstType it is the length of an LLC packet.
type etherType uint16

const (
	firstType          etherType = 0x600
	typeIPv4           etherType = 0x0800
	typeARP            etherType = 0x0806
	typeERSPAN3        etherType = 0x22eb
	typeEthernet       etherType = 0x6558 // transparent bridging
	typeVLAN           etherType = 0x8100
	typeIPv6           etherType = 0x86dd
	typePPP            etherType = 0x880b
	typeMPLS           etherType = 0x8847
	typeMPLSMulticast  etherType = 0x8848
	typePPPoEDiscovery etherType = 0x8863
	typePPPoE          etherType = 0x8864
	typeQinQ           etherType = 0x88a8
	typeERSPAN2        etherType = 0x88be
	typeLLDP           etherType = 0x88cc
	typeService        etherType = 0x88e7 // of provider bridges (802.1ah)
	typeFabricPath     etherType = 0x8903
	typeVNTag          etherType = 0x8926 // Cisco's port extenders
	typeETag           etherType = 0x893f // port extenders (802.1BR)
	typeQinQ9100       etherType = 0x9100 // VLANs of older switches
	typeQinQ9200       etherType = 0x9200
)

// ipProtocol is a protocol in IP, or an extension header of IPv6.
type ipProtocol uint8

const (
	protoHopByHop    ipProtocol = 0
	protoICMPv4      ipProtocol = 1
	protoIGMP        ipProtocol = 2
	protoIPv4        ipProtocol = 4
	protoTCP         ipProtocol = 6
	protoUDP         ipProtocol = 17
	protoIPv6        ipProtocol = 41
	protoRouting     ipProtocol = 43
	protoFragment    ipProtocol = 44
	protoGRE         ipProtocol = 47
	protoESP         ipProtocol = 50
	protoAH          ipProtocol = 51
	protoICMPv6      ipProtocol = 58
	protoDestination ipProtocol = 60
	protoEtherIP     ipProtocol = 97
	protoSCTP        ipProtocol = 132
	protoMPLS        ipProtocol = 137
)

// optionKind is the kind of an option of TCP.
type optionKind uint8

const (
	optionEnd           optionKind = 0
	optionNop           optionKind = 1
	optionMSS           optionKind = 2
	optionWindowScale   optionKind = 3
	optionSACKPermitted optionKind = 4
	optionSACK          optionKind = 5
	optionTimestamps    optionKind = 8
)
