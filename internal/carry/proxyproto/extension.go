package proxyproto

import "encoding/binary"

// UniqueID is the type of the extension with a connection's identifier, which HAProxy sends by
// `proxy-v2-options unique-id`: at most 128 bytes, of any kind.
const UniqueID = 0x05

// Extension returns the value of the first extension of a type in a header of version 2 that Parse has
// accepted; nil: it has none, or what comes before it is malformed. The value is a part of header.
func Extension(header []byte, kind byte) []byte {
	if len(header) < fixedLenV2 || header[0] != signatureV2[0] {
		return nil
	}
	block := header[fixedLenV2:]
	if addresses := addressLenV2[header[13]>>4]; addresses <= len(block) {
		block = block[addresses:]
	}
	for len(block) >= 3 {
		n := int(binary.BigEndian.Uint16(block[1:]))
		if n > len(block)-3 {
			return nil
		}
		if value := block[3 : 3+n]; block[0] == kind {
			return value
		}
		block = block[3+n:]
	}
	return nil
}

// AppendExtension appends an extension to a header of version 2, which nothing else precedes, and
// counts it in the header's length. The header must not become longer than MaxLenV2.
func AppendExtension(header []byte, kind byte, value []byte) []byte {
	header = append(header, kind)
	header = binary.BigEndian.AppendUint16(header, uint16(len(value)))
	header = append(header, value...)
	binary.BigEndian.PutUint16(header[14:], uint16(len(header)-fixedLenV2))
	return header
}
