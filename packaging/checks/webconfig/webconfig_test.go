// Package webconfig holds longhaul's reading of web configuration files against that of
// Prometheus' exporter toolkit. It is a module of its own, so that longhaul does not
// depend on the toolkit, which would make the program 4.7 MB larger.
package webconfig

import (
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"

	"longhaul/internal/run/config"
)

// stricter are the toolkit's own files that it takes and longhaul refuses, with the words of the mistake.
var stricter = map[string]string{
	"web_config_empty.yml":                      "the file is empty", // it asks for nothing, and would serve in clear
	"web_config_auth_clientCAs_missing.bad.yml": "without client_ca_file",
	"web_config_noAuth.good.blocking.yml":       "without client_ca_file",
	"web_config_rate_limiter_one_second.yaml":   "refuses every request",
	"web_config_users.good.yml":                 "has the cost 18, above 15", // a check would take 20 s
	"web_config_users_noTLS.good.yml":           "has the cost 18, above 15",
}

// dir has the toolkit's own test files.
func dir(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/exporter-toolkit").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "web")
}

func read(path string) (*web.TLSConfig, error) {
	s, _, err := config.ReadWebConfig(path, func(path string) string { return path })
	if err != nil {
		return nil, err
	}
	all := &web.TLSConfig{MinVersion: web.TLSVersion(s.MinVersion), MaxVersion: web.TLSVersion(s.MaxVersion), ClientAllowedSans: s.ClientNames,
		ClientAuth: s.ClientAuth.String()}
	for _, c := range s.CipherSuites {
		all.CipherSuites = append(all.CipherSuites, web.Cipher(c))
	}
	for _, c := range s.Curves {
		all.CurvePreferences = append(all.CurvePreferences, web.Curve(c))
	}
	return all, nil
}

// TestFilesOfTheToolkit reads every file that the toolkit's own tests have.
func TestFilesOfTheToolkit(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(dir(t), "testdata", "*.y*ml"))
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		theirs := web.Validate(file)
		_, ours := read(file)
		// The server of the toolkit finds this one when it begins.
		if name == "web_config_noAuth_noHTTP2Cipher.bad.yml" && theirs == nil {
			theirs = os.ErrInvalid
		}
		switch want := stricter[name]; {
		case want != "":
			if theirs != nil || ours == nil || !strings.Contains(ours.Error(), want) {
				t.Errorf("%s: the toolkit says %v, longhaul %v, want %s", name, theirs, ours, want)
			}
		case (theirs == nil) != (ours == nil):
			t.Errorf("%s: the toolkit says %v, longhaul %v", name, theirs, ours)
		}
	}
}

// TestSameTLS compares what both make of each setting.
func TestSameTLS(t *testing.T) {
	testdata := filepath.Join(dir(t), "testdata")
	usual := fmt.Sprintf("cert_file: %[1]s/server.crt, key_file: %[1]s/server.key", testdata)
	ca := fmt.Sprintf("client_ca_file: %s/tls-ca-chain.pem, ", testdata)
	settings := []string{"", "prefer_server_cipher_suites: false, ", ca + "client_auth_type: RequireAndVerifyClientCert, ",
		ca + "client_auth_type: VerifyClientCertIfGiven, ", "client_auth_type: RequireAnyClientCert, ", "client_auth_type: RequireClientCert, ",
		"client_auth_type: RequestClientCert, ", "client_auth_type: NoClientCert, ", "client_auth_type: none, ",
		ca + "client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [a, \"spiffe://b\"], "}
	for _, key := range []string{"min_version", "max_version"} {
		for _, version := range []string{"TLS10", "TLS11", "TLS12", "TLS13", "SSL30"} {
			other := map[string]string{"min_version": "max_version: TLS13, ", "max_version": "min_version: TLS10, "}[key]
			settings = append(settings, other+key+": "+version+", ")
		}
	}
	for _, c := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		settings = append(settings, "cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "+c.Name+"], ")
	}
	for _, curve := range []string{"CurveP256", "CurveP384", "CurveP521", "X25519", "X25519MLKEM768", "P256"} {
		settings = append(settings, "curve_preferences: ["+curve+"], ")
	}
	for i, text := range settings {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i, ".yml"))
		if err := os.WriteFile(file, []byte("tls_server_config: {"+text+usual+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ours, err := read(file)
		if theirs := web.Validate(file); (theirs == nil) != (err == nil) {
			t.Errorf("%s: the toolkit says %v, longhaul %v", text, theirs, err)
		}
		if err != nil {
			continue
		}
		want := map[string]bool{}
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,:[]", r) }) {
			want[word] = true
		}
		// What longhaul has read stands in the file, in the toolkit's own words.
		for _, c := range ours.CipherSuites {
			if name, _ := c.MarshalYAML(); !want[name.(string)] {
				t.Errorf("%s: longhaul has the suite %v", text, name)
			}
		}
		for _, c := range ours.CurvePreferences {
			if name, _ := c.MarshalYAML(); !want[name.(string)] {
				t.Errorf("%s: longhaul has the curve %v", text, name)
			}
		}
		for key, version := range map[string]*web.TLSVersion{"min_version": &ours.MinVersion, "max_version": &ours.MaxVersion} {
			if name, _ := version.MarshalYAML(); want[key] != want[name.(string)] && strings.Count(text, "version") == 1 {
				t.Errorf("%s: longhaul has %s %v", text, key, name)
			}
		}
		if auth := ours.ClientAuth; auth != "NoClientCert" && !want[auth] && !(auth == "RequireAnyClientCert" && want["RequireClientCert"]) {
			t.Errorf("%s: longhaul has client_auth_type %s", text, auth)
		}
		if n := strings.Count(text, "client_allowed_sans"); n > 0 && !slices.Equal(ours.ClientAllowedSans, []string{"a", "spiffe://b"}) {
			t.Errorf("%s: longhaul has the names %q", text, ours.ClientAllowedSans)
		}
	}
}
