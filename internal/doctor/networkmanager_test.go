package doctor

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestNetworkManager(t *testing.T) {
	finds(t, machine(t, nil), "networkmanager", Options{}, OK, "does not run")

	h := machine(t, map[string]string{"/etc/NetworkManager/conf.d/10-x.conf": "[main]\nplugins=keyfile\n"})
	processList(process{812, "NetworkManager", "/usr/sbin/NetworkManager"})(&h)
	f := finds(t, h, "networkmanager", Options{}, Warn, "leave the pods' network alone")

	// The command that mends it, on this machine's files.
	command := strings.Split(f.Mend, "`")[1]
	write, _, _ := strings.Cut(command, " && ")
	if out, err := exec.Command("sh", "-ec", strings.ReplaceAll(write, "/etc/", h.path("/etc")+"/")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	finds(t, h, "networkmanager", Options{}, OK, "leaves")
	finds(t, h, "networkmanager", Options{Encrypt: true}, OK, "leaves")
	earlier := "[keyfile]\nunmanaged-devices=interface-name:cni0;interface-name:flannel.*\n"
	old := machine(t, map[string]string{"/etc/NetworkManager/conf.d/gpulab.conf": earlier})
	processList(process{812, "NetworkManager", "/usr/sbin/NetworkManager"})(&old)
	finds(t, old, "networkmanager", Options{}, OK, "leaves")
	finds(t, old, "networkmanager", Options{Encrypt: true}, Warn, "leave the pods' network alone")
	if content, err := os.ReadFile(h.path("/etc/NetworkManager/conf.d/gpulab.conf")); err != nil || !strings.HasPrefix(string(content), "[keyfile]\nunmanaged") {
		t.Errorf("%v: %s", err, content)
	}
}
