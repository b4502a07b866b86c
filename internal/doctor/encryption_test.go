package doctor

import "testing"

func TestEncryption(t *testing.T) {
	h := machine(t, nil)
	finds(t, h, "encryption", Options{}, OK, "not to be encrypted")
	finds(t, h, "encryption", Options{Encrypt: true}, Fail, "This machine's kernel has no WireGuard", "network.encrypt")
	write(t, h.path("/sys/module/wireguard/version"), "1.0.0\n")
	finds(t, h, "encryption", Options{Encrypt: true}, OK, "can encrypt")
}
