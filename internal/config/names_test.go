package config

import (
	"strings"
	"testing"
)

func TestLocalNameSetting(t *testing.T) {
	for text, want := range map[string]LocalName{
		"": "gpulab", "localName: vision\n": "vision", "localName: Vision.local\n": "vision", "localName: gpu-2.local.\n": "gpu-2",
		"localName: off\n": LocalName(Off), "localName: \"off\"\n": LocalName(Off),
	} {
		if c, err := Load(write(t, text)); err != nil || c.LocalName != want {
			t.Errorf("%q: %q, %v; want %q", text, c.LocalName, err, want)
		}
	}
	for _, text := range []string{"a.b", "-a", "a_b", "ü", strings.Repeat("a", 64), "[x]"} {
		if _, err := Load(write(t, "localName: "+text+"\n")); err == nil || !strings.Contains(err.Error(), "localName") {
			t.Errorf("localName: %s: %v", text, err)
		}
	}
}

func TestOwnCertificateSetting(t *testing.T) {
	for text, words := range map[string]string{
		"tls: {certificate: /a}\n":                  "tls needs both",
		"tls: {certificate: a, key: /b}\n":          "full paths",
		"trustedProxies: [proxy]\n":                 "trustedProxies holds",
		"trustedProxies: [10.0.0.5/24]\n":           "a machine and a network",
		"tls: {certificate: /a, key: /b, ca: /c}\n": "ca",
	} {
		if _, err := Load(write(t, text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v; want words of %q", text, err, words)
		}
	}
	// Files that are missing leave a lab with a certificate of its own making.
	if _, err := Load(write(t, "tls: {certificate: /not/there, key: /not/there}\n")); err != nil {
		t.Error(err)
	}
}
