package doctor

import "testing"

func TestTimesync(t *testing.T) {
	h := machine(t, nil)
	finds(t, h, "timesync", Options{}, OK)
	h.synced = func() (synced, known bool) { return false, true }
	finds(t, h, "timesync", Options{}, Warn, "`apt-get install systemd-timesyncd && timedatectl set-ntp true`")
	h.synced = func() (synced, known bool) { return false, false }
	if found := look(t, h, "timesync", Options{}); len(found) != 0 {
		t.Errorf("what the kernel does not tell was reported: %v", found)
	}
	if _, known := clockSynced(); !known {
		t.Error("this kernel does not tell whether its clock is kept right")
	}
}
