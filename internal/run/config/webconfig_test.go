package config

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/test/nettest"
)

const webHash = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"

// webFolder has a server's certificate and an authority, and takes web configurations.
func webFolder(t *testing.T) (dir string, write func(text string) string) {
	t.Helper()
	dir = t.TempDir()
	nettest.NewIssuer(t, dir, "ca").Issue(t, dir, "relay", "localhost", time.Hour)
	file := filepath.Join(dir, "web.yaml")
	return dir, func(text string) string {
		nettest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
}

func asItIs(path string) string { return path }

func TestWebConfig(t *testing.T) {
	dir, write := webFolder(t)
	key, err := os.ReadFile(filepath.Join(dir, "relay.key"))
	nettest.Must(t, err)
	for _, text := range []string{"  key_file: relay.key\n", "  key: |\n    " + strings.ReplaceAll(strings.TrimSpace(string(key)), "\n", "\n    ") + "\n"} {
		s, warnings, err := ReadWebConfig(write(fmt.Sprintf(`
tls_server_config:
  cert_file: relay.pem
%s  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: %s/ca.pem
  client_allowed_sans: [prometheus.example.net, "spiffe://corp/prometheus"]
  min_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519, CurveP256]
http_server_config:
  http2: false
  headers: {X-Frame-Options: deny, Strict-Transport-Security: "max-age=31536000", X-XSS-Protection: ""}
basic_auth_users:
  prometheus: '%s'
rate_limit: {interval: 200ms, burst: 20}
`, text, dir, webHash)), asItIs)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if !s.TLS() || s.ClientAuth != tls.RequireAndVerifyClientCert || s.ClientCAs == nil || !slices.Equal(s.ClientNames, []string{"prometheus.example.net", "spiffe://corp/prometheus"}) ||
			s.MinVersion != tls.VersionTLS13 || s.MaxVersion != tls.VersionTLS13 || !slices.Equal(s.CipherSuites, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}) ||
			!slices.Equal(s.Curves, []tls.CurveID{tls.X25519, tls.CurveP256}) || s.HTTP2 || len(s.Headers) != 2 || s.Headers["X-Frame-Options"] != "deny" ||
			s.Users["prometheus"] != webHash || s.Interval != 200*time.Millisecond || s.Burst != 20 || len(s.Named) != len(s.Files)-1 || s.Named[0] != dir+"/relay.pem" {
			t.Errorf("%+v", s)
		}
	}
}

// TestMistakesInAWebConfig: each has its place, and none shows a secret.
func TestMistakesInAWebConfig(t *testing.T) {
	dir, write := webFolder(t)
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "empty.pem"), nil, 0o600))
	const tlsPart = "tls_server_config:\n  cert_file: relay.pem\n  key_file: relay.key\n"
	for text, want := range map[string]string{
		"":                       "1:1: the file is empty; write tls_server_config",
		"tls_config: {}":         "1:1: unknown key tls_config in a web configuration; known keys: tls_server_config, http",
		"tls_server_config: {}":  "1:20: tls_server_config has no cert_file; add cert_file",
		"basic_auth_users: [a]":  "1:19: basic_auth_users must be a mapping, not a list; write a line such as",
		"tls_server_config: {a:": "1:22: this is not valid YAML",

		"tls_server_config:\n  cert_file: relay.pem\n":                                   "2:3: tls_server_config has no key_file; add key_file",
		"tls_server_config:\n  cert_file: none.pem\n  key_file: relay.key\n":             "2:14: the cert file DIR/none.pem cannot be read: no such file or directory; check the path",
		"tls_server_config:\n  cert_file: relay.pem\n  key_file: ca.pem\n":               "3:13: DIR/relay.pem and DIR/ca.pem are not a certificate with its key",
		"tls_server_config:\n  cert_file: relay.pem\n  cert: x\n  key_file: relay.key\n": "3:9: there is cert and cert_file; leave one of them out",

		tlsPart + "  client_ca_file: empty.pem\n  client_auth_type: RequireAndVerifyClientCert\n": "4:19: DIR/empty.pem has no certificate of an authority; name a file in PEM form",
		tlsPart + "  client_ca_file: ca.pem\n":                                                    "2:3: client_ca_file is set, and no client is asked for a certificate; add client_auth_type: RequireAndVerifyClientCert",
		tlsPart + "  client_auth_type: RequireAndVerifyClientCert\n":                              "4:21: client_auth_type is RequireAndVerifyClientCert without client_ca_file: anybody",
		tlsPart + "  client_auth_type: Always\n":                                                  `4:21: client_auth_type cannot be "Always"; use one of NoClientCert, RequestClientCert`,
		tlsPart + "  client_auth_type: RequestClientCert\n  client_allowed_sans: [a]\n":           "4:21: client_allowed_sans are set, and clients without",
		tlsPart + "  min_version: TLS13\n  max_version: TLS12\n":                                  "4:16: min_version is above max_version",
		tlsPart + "  min_version: SSL30\n":                                                        `4:16: min_version cannot be "SSL30"; use one of TLS10, TLS11, TLS12, TLS13`,
		tlsPart + "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n":                                 `4:19: cipher_suites cannot be "TLS_RSA_WITH_RC4_128_SHA"; use one of`,
		tlsPart + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\n":                    "4:18: cipher_suites has neither TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 nor",
		tlsPart + "  curve_preferences: [P256]\n":                                                 `4:23: curve_preferences cannot be "P256"; use one of CurveP256`,
		"http_server_config: {http2: maybe}":                                                      `1:29: http2 cannot be "maybe"; use true or false`,
		"http_server_config: {headers: {X-Powered-By: x}}":                                        "1:32: unknown key X-Powered-By in headers; known keys: Content-Security-Policy",
		"http_server_config: {headers: {X-Frame-Options: allow}}":                                 `1:49: X-Frame-Options cannot be "allow"; use deny or sameorigin`,
		"basic_auth_users: {a: hunter2-secret}":                                                   `1:23: the password of "a" is not a bcrypt hash; make it with htpasswd -nBC 10 NAME`,
		"basic_auth_users: {a: '$2y$18$4VeFDzXIoPHKnKTU3O3GH.N.vZu06CVqczYZ8WvfzrddFU6tGqjR.'}":   `1:23: the hash of the password of "a" has the cost 18, above 15`,
		"basic_auth_users: {'a:b': '" + webHash + "'}":                                            "1:20: a user cannot be \"a:b\"; use a name without a colon",
		"basic_auth_users:\n  a: '" + webHash + "'\n  a: '" + webHash + "'\n":                     `3:3: the user "a" is set twice`,
		"rate_limit: {interval: 1s}":                                                              "1:13: rate_limit with a burst of 0 refuses every request",
		"rate_limit: {interval: often, burst: 1}":                                                 `1:24: interval cannot be "often"; write it like`,
	} {
		file := write(text)
		_, _, err := ReadWebConfig(file, asItIs)
		got := fmt.Sprint(err)
		if want = file + ":" + strings.ReplaceAll(want, "DIR", dir); !strings.HasPrefix(got, want) || strings.Contains(got, "hunter2") || strings.Contains(got, webHash) {
			t.Errorf("%q:\n got %s\nwant %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"basic_auth_users: {a: '" + webHash + "'}":             "1:19: passwords cross the network in clear",
		tlsPart + "  client_auth_type: RequireAnyClientCert\n": "4:21: certificates of clients are not verified",
		tlsPart + "  min_version: TLS10\n":                     "4:16: TLS 1.0 and 1.1 are not safe",
	} {
		file := write(text)
		_, warnings, err := ReadWebConfig(file, asItIs)
		if err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings.Error(), file+":"+want) {
			t.Errorf("%q: %v, %v", text, warnings, err)
		}
	}
	key := filepath.Join(dir, "relay.key")
	nettest.Must(t, os.Chmod(key, 0o644))
	_, warnings, err := ReadWebConfig(write(tlsPart), asItIs)
	if want := "3:13: " + key + ", which has the key, is open to every user of this host (mode 0644); run chmod o= " + key; err != nil || !strings.HasSuffix(warnings.Error(), want) {
		t.Errorf("%v, %v", warnings, err)
	}
}

// TestWebConfigOfARelay: where the configuration names such files, their mistakes are its own.
func TestWebConfigOfARelay(t *testing.T) {
	_, write := webFolder(t)
	const (
		pair     = "tls_server_config: {cert_file: relay.pem, key_file: relay.key"
		verified = pair + ", client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert}\n"
		users    = pair + "}\nbasic_auth_users: {a: '" + webHash + "'}\n"
		tunnel   = "tunnels: [{name: a, listen: \"127.0.0.1:6000\", forward: \"127.0.0.1:1\"}]\n"
	)
	for i, c := range []struct{ text, web, want string }{
		{"http_listen: 127.0.0.1:9463\nhttp_web_config: FILE\n", verified, ""},
		{"http_listen: 127.0.0.1:9463\nhttp_web_config: FILE\n", pair + "}", ""},
		{"http_web_config: FILE\n", pair + "}", "http_web_config belongs to http_listen; add http_listen"},
		{"http_listen: 127.0.0.1:9463\nhttp_web_config: web.yaml\n", "", `http_web_config cannot be "web.yaml"; use an absolute path`},
		{"http_listen: 127.0.0.1:9463\nhttp_web_config: off\nhealth_listen: 127.0.0.1:9465\n", "", ""},
		{"http_listen: 127.0.0.1:9463\nhttp_web_config: FILE\n", "rate_limit: 1", "FILE:1:13: rate_limit must be a mapping"},
		{"http_listen: 127.0.0.1:9463\nhealth_listen: 127.0.0.1:9463\n", "", "127.0.0.1:9463 clashes with 127.0.0.1:9463 of http_listen on line 1"},
		{"http_listen: 0.0.0.0:9463\nhealth_listen: \"[::]:9463\"\n", "", "[::]:9463 clashes with 0.0.0.0:9463 of http_listen on line 1; [::] also takes IPv4; remove one of them, or use another port"},
		{"http_listen: \":9463\"\nhealth_listen: 0.0.0.0:9463\n", "", "0.0.0.0:9463 clashes with [::]:9463 of http_listen on line 1; [::] also takes IPv4"},
		{"http_listen: [\"[::]:9463\", \"0.0.0.0:9463\"]\n", "", "0.0.0.0:9463 clashes with [::]:9463 of http_listen on line 1; [::] also takes IPv4"},
		{"http_listen: 0.0.0.0:9463\nhealth_listen: \"[::1]:9463\"\n", "", ""},
		{"dashboard: {listen: \":9464\", web_config: FILE}\n", verified, ""},
		{"dashboard: {listen: \":9464\", web_config: FILE}\n", users, ""},
		{"dashboard: {listen: \":9464\", web_config: FILE}\n", pair + "}", "admits everybody; add client_auth_type: RequireAndVerifyClientCert, or basic_auth_users, or token_file"},
		{"dashboard: {listen: \":9464\", web_config: FILE, token_file: /t}\n", pair + "}", ""},
		{"dashboard: {listen: \":9464\", web_config: FILE, token_file: /t}\n", users, "has token_file, and its web configuration basic_auth_users; leave one of them out"},
		{"dashboard: {listen: \":9464\", web_config: FILE, tls_cert: /c}\n", verified, "dashboard has web_config and tls_cert or tls_key; leave tls_cert and tls_key out"},
		{"dashboard: {listen: \":9464\", web_config: FILE}\n", "rate_limit: {interval: 1s, burst: 1}", "has no tls_server_config; add it"},
	} {
		file := write(c.web)
		l := Loader{WebConfig: func(path string) (*webconfig.Settings, Errors, error) { return ReadWebConfig(path, asItIs) }}
		_, err := l.Parse(t.Context(), "longhaul.yaml", []byte(strings.ReplaceAll(c.text, "FILE", file)+tunnel))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), strings.ReplaceAll(c.want, "FILE", file)) {
			t.Errorf("%d: %v, want %s", i, err, c.want)
		}
	}
}
