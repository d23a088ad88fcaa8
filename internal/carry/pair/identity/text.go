package identity

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// sumBytes is the length of the sum at the end of an encoded text.
const sumBytes = 4

var (
	errCutShort = errors.New("it is incomplete or altered")

	encoding   = base64.RawURLEncoding.Strict()
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// encode writes bytes as one word: the prefix, then base64url of the bytes and their
// CRC-32C, so that a word that was copied in part is found out.
func encode(prefix string, b []byte) string {
	sum := binary.BigEndian.AppendUint32(b[:len(b):len(b)], crc32.Checksum(b, castagnoli))
	return prefix + encoding.EncodeToString(sum)
}

// decode reverses encode.
func decode(prefix, word string) ([]byte, error) {
	text, ok := strings.CutPrefix(word, prefix)
	if !ok {
		return nil, fmt.Errorf("it does not begin with %s", prefix)
	}
	b, err := encoding.DecodeString(text)
	// The decoder skips line breaks; a word has none.
	if err != nil || len(b) < sumBytes || strings.ContainsAny(text, "\r\n") {
		return nil, errCutShort
	}
	b, sum := b[:len(b)-sumBytes], b[len(b)-sumBytes:]
	if crc32.Checksum(b, castagnoli) != binary.BigEndian.Uint32(sum) {
		return nil, errCutShort
	}
	return b, nil
}

// decodeKey reverses encode for the 32 bytes of a key.
func decodeKey(prefix, word string) (key [keyBytes]byte, err error) {
	b, err := decode(prefix, word)
	if err == nil && len(b) != keyBytes {
		err = errCutShort
	}
	if err != nil {
		return key, err
	}
	return [keyBytes]byte(b), nil
}
