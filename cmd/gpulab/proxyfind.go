package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// foundProxy is the way to the internet that this machine already uses.
type foundProxy struct {
	url     string
	noProxy []string
	where   string // it was found
	apt     bool   // known from apt alone, whose proxy may be one for packages only
}

// proxyNames are the variables that name a proxy, the better ones first.
var proxyNames = []string{"https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"}

// findProxy looks where machines on a campus have their proxy written down: the environment, /etc/environment below
// root, and what apt says of its own.
func findProxy(ctx context.Context, environment func(string) string, root string) (foundProxy, bool) {
	if p, ok := proxyIn(environment); ok {
		p.where = "the environment"
		return p, true
	}
	path := filepath.Join(root, "etc/environment")
	file := environmentFile(path)
	if p, ok := proxyIn(func(name string) string { return file[name] }); ok {
		p.where = path
		return p, true
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--format", "%v%n", "Acquire::http::Proxy").Output()
	if address := strings.TrimSpace(string(out)); err == nil && address != "" && address != "DIRECT" {
		return foundProxy{url: withScheme(address), where: "apt's configuration", apt: true}, true
	}
	return foundProxy{}, false
}

func proxyIn(get func(string) string) (foundProxy, bool) {
	for _, name := range proxyNames {
		address := strings.TrimSpace(get(name))
		if address == "" {
			continue
		}
		direct := get("no_proxy")
		if direct == "" {
			direct = get("NO_PROXY")
		}
		return foundProxy{url: withScheme(address), noProxy: directNames(direct)}, true
	}
	return foundProxy{}, false
}

// withScheme completes the short form that many programs take.
func withScheme(address string) string {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return strings.TrimSuffix(address, "/")
}

// directNames are the entries of NO_PROXY but those that mean the machine itself, which for a notebook is another one.
func directNames(list string) []string {
	var out []string
	for _, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		if name != "localhost" && name != "::1" && !strings.HasPrefix(name, "127.") && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// environmentFile reads the lines NAME=value of /etc/environment, as pam_env does.
func environmentFile(path string) map[string]string {
	values := map[string]string{}
	data, err := os.ReadFile(path)
	if err != nil {
		return values
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			values[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return values
}

// withoutProxy is an environment in which no program finds a proxy: what gpulab starts is led to one only where the
// configuration says so, and never to its own parts.
func withoutProxy(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasSuffix(strings.ToLower(name), "_proxy")
	})
}
