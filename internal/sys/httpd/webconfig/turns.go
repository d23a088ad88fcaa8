package webconfig

import (
	"crypto"
	"io"
	"net"
	"runtime"
)

// signing has the places of signatures, the expensive part of a handshake: 1 ms with RSA of 2048
// bits, 7 ms with 4096. Anybody can begin handshakes, with little work of their own. With a
// signature on each CPU the flows' event loops would wait for theirs.
var signing = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4))

// inTurn is the private key of one handshake, whose signature waits for a place.
type inTurn struct {
	crypto.Signer
	places chan struct{}
	gone   <-chan struct{} // closed with the connection; nil: unknown
}

// Sign returns an error if the connection is closed before its turn.
func (k inTurn) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	select {
	case k.places <- struct{}{}:
		defer func() { <-k.places }()
	case <-k.gone:
		return nil, net.ErrClosed
	}
	return k.Signer.Sign(rand, digest, opts)
}
