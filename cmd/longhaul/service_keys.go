//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"longhaul/internal/check"
	"longhaul/internal/config"
	"longhaul/internal/service"
)

// credentialSource is the file that systemd hands to the service under a path
// of [check.Credentials].
func credentialSource(path string) (source string, ok bool) {
	name, ok := strings.CutPrefix(path, check.Credentials+unitName+"/")
	if !ok || name == "" || strings.ContainsAny(name, "/:%") {
		return "", false
	}
	return filepath.Join(filepath.Dir(configFile), name), true
}

// keyFileNow is what there is to read of a key file: where the service is not
// running, what it will be handed.
func keyFileNow(path string) string {
	if source, ok := credentialSource(path); ok {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return source
		}
	}
	return path
}

// checkServiceKey says what is wrong with a key file of the service, whose
// user cannot read what only root can, nor own a file.
func checkServiceKey(host service.Host) func(path string) (problem, fix string) {
	return func(path string) (problem, fix string) {
		source, ok := credentialSource(path)
		switch {
		case !ok:
			return "the service's user cannot read the key file " + path,
				credentialFix(path)
		case host.Root == "":
			return checkKeyFile(source)
		case !host.Exists(source):
			return "there is no " + source + " in the image", "make it with longhaul check --new-key, or copy it from another relay"
		}
		return "", ""
	}
}

// credentialFix says how the service gets a file that only root can read.
func credentialFix(path string) string {
	name := filepath.Base(path)
	return "put it at /etc/longhaul/" + name + " and name it " + check.Credentials + unitName + "/" + name + " here: longhaul service install has systemd hand it over"
}

// keyFiles are those of a configuration that systemd is to hand over, by their
// names as credentials.
func keyFiles(c *config.Config) (names []string) {
	names = dashboardFiles(c)
	for _, t := range c.Tunnels {
		if source, ok := credentialSource(t.Check.KeyFile); ok {
			names = append(names, filepath.Base(source))
		}
	}
	return names
}

// dashboardFiles are those of the dashboard, likewise.
func dashboardFiles(c *config.Config) (names []string) {
	for _, file := range []string{c.Dashboard.TLSCert, c.Dashboard.TLSKey, c.Dashboard.TokenFile} {
		if source, ok := credentialSource(file); ok {
			names = append(names, filepath.Base(source))
		}
	}
	return names
}

// checkServiceDashboard says what is wrong with the files of the service's
// dashboard, whose user cannot read what only root can.
func checkServiceDashboard(host service.Host) func(config.Dashboard) (problem, fix string) {
	return func(c config.Dashboard) (problem, fix string) {
		for _, file := range []string{c.TLSKey, c.TokenFile} { // a certificate is no secret
			if _, ok := credentialSource(file); !ok {
				return "the service's user cannot read the file " + file + " of the dashboard", credentialFix(file)
			}
		}
		if host.Root != "" {
			return "", ""
		}
		return checkDashboardFiles(c)
	}
}
