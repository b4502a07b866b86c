package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestOutliveARestart: a connection that is made while no gpulab runs is answered by
// the next one, a socket nobody wants any more is given up, and the lock that keeps the
// machine awake holds until there is none any more.
func TestOutliveARestart(t *testing.T) {
	systemd := asSystemd(t)
	hears := func() (text string, file *os.File) {
		t.Helper()
		words, rights := make([]byte, 500), make([]byte, 500)
		_ = systemd.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, m, _, _, err := systemd.ReadMsgUnix(words, rights)
		if err != nil {
			t.Fatal(err)
		}
		if m > 0 {
			messages, err1 := syscall.ParseSocketControlMessage(rights[:m])
			fds, err2 := syscall.ParseUnixRights(&messages[0])
			if err := errors.Join(err1, err2); err != nil || len(fds) != 1 {
				t.Fatal(fds, err)
			}
			file = os.NewFile(uintptr(fds[0]), "kept")
		}
		return string(words[:n]), file
	}

	first, err := outliving{}.listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := first.Addr().String()
	text, kept := hears()
	if want := "FDSTORE=1\nFDNAME=tcp127.0.0.1_0"; text != want || kept == nil {
		t.Fatalf("systemd heard %q with %v, want %q with a socket", text, kept, want)
	}
	_ = first.Close()
	called, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatalf("refused between two gpulabs: %v", err)
	}
	defer called.Close()

	next := outliving{map[string]*os.File{socketName(address): kept, "tcp_7": nil}}
	second, err := next.listen(address)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	go func() {
		if conn, err := second.Accept(); err == nil {
			_, _ = io.WriteString(conn, "here")
			_ = conn.Close()
		}
	}()
	_ = called.SetReadDeadline(time.Now().Add(5 * time.Second))
	if answer, err := io.ReadAll(called); err != nil || string(answer) != "here" {
		t.Errorf("the next gpulab answered %q, %v", answer, err)
	}
	next.giveUpRest()
	if text, _ := hears(); text != "FDSTOREREMOVE=1\nFDNAME=tcp_7" {
		t.Errorf("systemd heard %q", text)
	}

	lock, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	keepLock(end)
	for _, want := range []string{"FDSTOREREMOVE=1\nFDNAME=stay-awake", "FDSTORE=1\nFDNAME=stay-awake"} {
		if text, kept = hears(); text != want {
			t.Errorf("systemd heard %q, want %q", text, want)
		}
	}
	_ = end.Close()
	after := outliving{map[string]*os.File{stayAwakeLock: kept}}
	taken := after.take(stayAwakeLock)
	after.giveUpRest()
	if _, err := taken.WriteString("held"); err != nil {
		t.Errorf("the lock that systemd kept: %v", err)
	}
	_ = taken.Close()
	keepLock(nil)
	if text, _ := hears(); text != "FDSTOREREMOVE=1\nFDNAME=stay-awake" {
		t.Errorf("systemd heard %q", text)
	}
	_ = systemd.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := systemd.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes more were said", n)
	}
}

// TestRequestsWaitForTheStart: a program's request waits and is answered, a page
// is told at once, and where the start has failed nobody waits.
func TestRequestsWaitForTheStart(t *testing.T) {
	l := &appliance{boot: newBoot("1", "x", "address"), labs: newSwitchHandler()}
	l.where.Store(&place{})
	ask := func(mode string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "https://10.0.0.5:8443/user/ada/api", nil)
		r.Header.Set("Sec-Fetch-Mode", mode)
		l.starting(l.labs).ServeHTTP(w, r)
		return w
	}
	if w := ask("navigate"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a page is answered with %d", w.Code)
	}
	began, codes := time.Now(), make(chan int)
	go func() { codes <- ask("cors").Code }()
	time.Sleep(200 * time.Millisecond)
	l.labs.set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	if code := <-codes; code != http.StatusTeapot {
		t.Errorf("after %s a script is answered with %s", time.Since(began), strconv.Itoa(code))
	}

	l.labs = newSwitchHandler()
	_ = l.boot.do("address", func(*stage) error { return errors.New("no network") })
	l.boot.failed(errors.New("no network"), time.Now())
	began = time.Now()
	if code := ask("cors").Code; code != http.StatusServiceUnavailable || time.Since(began) > startPatience/2 {
		t.Errorf("after a start that failed a script is answered with %d after %s", code, time.Since(began))
	}
}
