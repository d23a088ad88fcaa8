package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"longhaul/lab"
)

// The other programs encrypt as the pair does: TLS 1.3 with the cipher that Go takes
// where the processor has AES, and certificates of both sides.
const tlsCipher = "TLS_AES_128_GCM_SHA256"

// startHAProxy starts HAProxy at both sites.
func (w *world) startHAProxy(ctx context.Context) error {
	near, far, err := w.certificates()
	if err != nil {
		return err
	}
	for _, one := range []struct{ host, bind, server string }{
		{"relay-b", addressFar + fmt.Sprintf(" ssl crt %s ca-file %s verify required ssl-min-ver TLSv1.3 ciphersuites %s", far.both, near.certificate, tlsCipher), addressTo},
		{"relay-a", addressNear, addressFar + fmt.Sprintf(" ssl crt %s ca-file %s verify required ssl-min-ver TLSv1.3 ciphersuites %s", near.both, far.certificate, tlsCipher)},
	} {
		config, err := w.write(one.host+".cfg", fmt.Sprintf(`
defaults
    mode tcp
    option splice-auto
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen relay
    bind %s
    server next %s
`, one.bind, one.server))
		if err != nil {
			return err
		}
		if _, err := w.Start(ctx, one.host, port, lab.FindProgram("haproxy"), "-db", "-q", "-f", config); err != nil {
			return err
		}
	}
	return nil
}

// startStunnel starts stunnel at both sites.
func (w *world) startStunnel(ctx context.Context) error {
	near, far, err := w.certificates()
	if err != nil {
		return err
	}
	for _, one := range []struct {
		host, client    string
		accept, connect string
		own             certificate
		peer            certificate
	}{
		{"relay-b", "no", addressFar, addressTo, far, near},
		{"relay-a", "yes", addressNear, addressFar, near, far},
	} {
		config, err := w.write(one.host+".conf", fmt.Sprintf(`foreground = yes
pid =
debug = err
socket = l:TCP_NODELAY=1
socket = r:TCP_NODELAY=1
[relay]
client = %s
accept = %s
connect = %s
cert = %s
CAfile = %s
verifyPeer = yes
sslVersion = TLSv1.3
ciphersuites = %s
`, one.client, one.accept, one.connect, one.own.both, one.peer.certificate, tlsCipher))
		if err != nil {
			return err
		}
		if _, err := w.Start(ctx, one.host, port, lab.FindProgram("stunnel4"), config); err != nil {
			return err
		}
	}
	return nil
}

// write writes a file of the world.
func (w *world) write(name, text string) (string, error) {
	path := filepath.Join(w.Dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// certificate names a certificate's file, and one with its key too.
type certificate struct{ certificate, both string }

// certificates makes self-signed certificates for both sites.
func (w *world) certificates() (near, far certificate, err error) {
	if near, err = w.certificate("near"); err != nil {
		return near, far, err
	}
	far, err = w.certificate("far")
	return near, far, err
}

func (w *world) certificate(name string) (c certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	now := time.Now()
	template := x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return c, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, err
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if c.certificate, err = w.write(name+".crt", text); err != nil {
		return c, err
	}
	c.both, err = w.write(name+".pem", text+string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return c, err
}
