package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/nvidiadriver"
	"github.com/gpulab/gpulab/internal/version"
)

type joinFlags struct {
	name, gpus string
	simulated  int
	replace    bool
	head       string            // of those on the local network
	key        *ecdsa.PrivateKey // with which the machine has asked; nil for a new one
}

func newJoin(a *app) *cobra.Command {
	f := &joinFlags{}
	c := &cobra.Command{
		Use: "join [CODE]", Short: "Make this machine a part of another one's pool",
		Long: `Make this machine a part of another one's pool. The code comes from gpulab
invite-node on the head; with - it is read from standard input, so that it stands
in no list of processes. Without a code the heads on the local network are shown,
and the one you choose is asked: its people compare a number and let the machine
in with gpulab nodes accept. The machine is checked first, and nothing is changed
while something is in the way.

It is done when Kubernetes calls the machine ready, its first readings have
reached the head, and a pod here has got an answer from one on the head. It may be
interrupted and run again; on a machine that has joined, no code is needed.`,
		Example: `  sudo gpulab join gl1…
  sudo gpulab join                            look for heads on the local network
  sudo gpulab join --head "Vision lab"        ask that one
  sudo gpulab join -                          read the code from standard input
  sudo gpulab join gl1… --name gpu-2          under another name than the machine's own
  sudo gpulab join gl1… --gpus none           keep this machine's GPUs out of the pool
  sudo gpulab join gl1… --replace             this machine was installed anew`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			code := ""
			if len(args) == 1 {
				code = args[0]
			}
			if code == "-" {
				data, err := io.ReadAll(io.LimitReader(c.InOrStdin(), 4096))
				if err != nil {
					return fmt.Errorf("the join code: %w", err)
				}
				code = string(data)
				if strings.TrimSpace(code) == "" {
					return fail(exitUsage, "there is no join code on standard input; `gpulab invite-node` on the head makes one")
				}
			}
			return joinPool(c, a, f, code)
		},
	}
	c.Flags().StringVar(&f.head, "head", "",
		"without a code: the lab, head or address to ask, of those on the local network")
	c.Flags().StringVar(&f.name, "name", "", "the machine's name in the pool (default: its host name)")
	c.Flags().StringVar(&f.gpus, "gpus", "", "real, simulated or none (default: what the machine has, and the pool takes)")
	completeFlag(c, "gpus", config.GPUsReal, config.GPUsSimulated, config.GPUsNone)
	c.Flags().IntVar(&f.simulated, "simulated-gpus", 0, "how many GPUs to simulate (default: as many as the head)")
	c.Flags().BoolVar(&f.replace, "replace", false, "take the place of a machine of the same name, which this one was "+
		"before it was installed anew")
	return c
}

func joinPool(c *cobra.Command, a *app, f *joinFlags, text string) error {
	ctx, out := c.Context(), c.OutOrStdout()
	began := time.Now()
	unlock, err := lockInit(a)
	if err != nil {
		return err
	}
	defer unlock()
	file, err := loadJoined(a)
	if err != nil {
		return fail(exitPreflight, "%w", err)
	}
	if file == nil {
		if text == "" {
			if text, f.key, err = askToJoin(c, a, f); err != nil {
				return err
			}
		}
		if file, err = apply(ctx, out, a, f, text); err != nil {
			return err
		}
	} else if err := sameLab(file, text); err != nil {
		return err
	} else {
		catchUp(ctx, file)
	}
	changed, err := startAgent(ctx, a, file)
	if err != nil {
		return err
	}
	did, err := followJoin(ctx, a, out)
	if err != nil {
		return err
	}
	if err := linkCommand(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if changed || did {
		fmt.Fprintf(out, "%s is in the pool of %s after %s.\n", file.Name, file.Settings.Lab, round(time.Since(began)))
	} else {
		fmt.Fprintf(out, "%s is in the pool of %s; nothing changed (%s).\n", file.Name, file.Settings.Lab,
			round(time.Since(began)))
	}
	if file.GPUs == config.GPUsSimulated {
		fmt.Fprintf(out, "Its %d GPUs are simulated: they compute nothing.\n", file.SimulatedGPUs)
	}
	fmt.Fprintf(out, "\n  Pages          %s\n  This machine   `gpulab status`; `gpulab leave` takes it out of the pool\n",
		file.Settings.URL)
	if file.Settings.Shared == "" && file.Settings.Export == "" {
		fmt.Fprintf(out, "  Homes          are on %s's own disk, so notebooks start there only; storage.export or "+
			"storage.shared in its configuration changes that\n", file.Settings.Head)
	}
	return nil
}

// catchUp asks what the head wants of this machine now; an agent that was started
// with something else is started anew. Without an answer, what it wanted last
// stands.
func catchUp(ctx context.Context, file *joinedFile) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	pass, err := loadPassport(file.config())
	if err != nil {
		return // the agent says why
	}
	client := nodeapi.Member(file.places(), pass.authority, func() (*tls.Certificate, error) {
		return pass.certificate, nil
	})
	if s, err := client.Settings(ctx); err == nil {
		s.DataDir = file.Settings.DataDir
		file.Settings = s
		_ = file.save()
	}
}

// sameLab refuses the code of another lab than the machine belongs to.
func sameLab(file *joinedFile, text string) error {
	if text == "" {
		return nil
	}
	code, err := nodes.ParseCode(text)
	if err != nil {
		return fail(exitPreflight, "%w", err)
	}
	pass, err := loadPassport(file.config())
	if err != nil {
		return fail(exitPreflight, "%w", err)
	}
	if sha256.Sum256(pass.authority.Raw) != code.Authority {
		return fail(exitPreflight, "this machine belongs to the pool of %s already, and the code is another lab's; run "+
			"`gpulab leave` first", file.Settings.Lab)
	}
	return nil
}

// clockTolerance is how far two machines' clocks may be apart: readings carry
// the time, and certificates have an end.
const clockTolerance = 30 * time.Second

// apply does all that must be right before anything is changed, asks the head to
// let the machine in, and writes down what it answers.
func apply(ctx context.Context, out io.Writer, a *app, f *joinFlags, text string) (*joinedFile, error) {
	refuse := func(format string, args ...any) (*joinedFile, error) {
		return nil, fail(exitPreflight, format, args...)
	}
	if err := isHead(a); err != nil {
		return refuse("%w", err)
	}
	code, err := nodes.ParseCode(text)
	if err != nil {
		return refuse("%w", err)
	}
	if err := haveBundle(); err != nil {
		return refuse("%w", err)
	}
	name := f.name
	if name == "" {
		if name, err = embedk8s.HostName(); err != nil {
			return refuse("%w", err)
		}
	}
	machine, err := machineID()
	if err != nil {
		return refuse("%w", err)
	}
	client, authority, hello, err := meet(ctx, code)
	if err != nil {
		return refuse("%w", err)
	}
	if err := nodeapi.Skew("this machine", version.Version, hello.Version); err != nil {
		return refuse("%w", err)
	}
	if off := time.Since(hello.Time); off.Abs() > clockTolerance {
		word := "ahead of"
		if off < 0 {
			word = "behind"
		}
		return refuse("this machine's clock is %s %s the head's; set both right (`timedatectl set-ntp true`) and try again",
			off.Abs().Round(time.Second), word)
	}
	// The key is kept with the code, so that a join that was interrupted goes on.
	keyPath := filepath.Join(config.DefaultDataDir, "tls", "join-"+hex.EncodeToString(code.ID[:])+".key")
	key, err := nodes.NewKey()
	if err != nil {
		return nil, err
	}
	if f.key != nil {
		key = f.key
	} else if data, err := os.ReadFile(keyPath); err == nil {
		if old, err := nodes.ParseKey(data); err == nil {
			key = old
		}
	}
	request, err := nodes.NewRequest(key)
	if err != nil {
		return nil, err
	}
	application := nodeapi.Application{
		Code: code.ID[:], Secret: code.Secret[:], Request: request, Name: name, Machine: machine,
		Version: version.Version, GPUs: config.GPUsNone, Replace: f.replace, Try: true,
	}
	tried, err := client.Join(ctx, application)
	if err != nil {
		return refuse("%w", err)
	}
	file := &joinedFile{Name: name, Head: code.Addresses, Settings: tried.Settings, path: joinedPath(a)}
	if file.GPUs, file.SimulatedGPUs, err = gpusToJoin(out, tried.Settings, f); err != nil {
		return nil, err
	}
	if err := fitsPool(ctx, out, file); err != nil {
		return nil, err
	}
	keyPEM, err := nodes.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	cfg := file.config()
	if err := os.MkdirAll(cfg.DataDir, 0o711); err != nil {
		return nil, err
	}
	if err := nodes.WriteSecret(keyPath, keyPEM); err != nil {
		return nil, err
	}
	application.Try, application.GPUs = false, file.GPUs
	admission, err := client.Join(ctx, application)
	if err != nil {
		return refuse("%w", err)
	}
	for name, data := range map[string][]byte{
		nodeAuthorityFile: nodes.EncodeCertificate(authority), nodeKeyFile: keyPEM,
		nodeCertificateFile: admission.Certificate,
	} {
		if err := nodes.WriteSecret(filepath.Join(tlsDir(cfg), name), data); err != nil {
			return nil, err
		}
	}
	if _, err := loadPassport(cfg); err != nil {
		return nil, err
	}
	if err := file.save(); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "✓ %-12s %s lets this machine in as %s\n", "head", hello.Lab, file.Name)
	return file, os.Remove(keyPath)
}

// isHead refuses a machine that is, or was meant to be, the head of a lab.
func isHead(a *app) error {
	dir := config.DefaultDataDir
	if cfg, err := loadConfig(a.configPath); err == nil {
		dir = cfg.DataDir
	}
	for _, path := range []string{a.configPath, filepath.Join(dir, "gpulab.db")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("this machine is the head of a lab itself (there is %s); to make it a part of another, save "+
				"what is to be kept (`gpulab backup`), run `gpulab reset`, and try again", path)
		}
	}
	return nil
}

// meet finds the head that made a code.
func meet(ctx context.Context, code nodes.Code) (*nodeapi.Client, []byte, nodeapi.Hello, error) {
	var words []string
	for _, a := range code.Addresses {
		words = append(words, a.String())
	}
	head, own, err := nodeapi.Reach(ctx, code.Addresses)
	if err != nil {
		return nil, nil, nodeapi.Hello{}, fmt.Errorf("the head cannot be reached at %s: see that it is on, that both "+
			"machines are in one network, and that its firewall lets in TCP ports %d and %d (%w)",
			strings.Join(words, " or "), code.Addresses[0].Port(), kubernetesPort, err)
	}
	if own == head.Addr() {
		return nil, nil, nodeapi.Hello{}, errors.New("the code is this very machine's; it is for another one")
	}
	client := nodeapi.Stranger(code)
	hello, authority, err := client.Hello(ctx)
	if errors.Is(err, nodeapi.ErrForeign) {
		return nil, nil, hello, err
	}
	if err != nil {
		return nil, nil, hello, fmt.Errorf("something answers at %s, but not as gpulab's head does: %w", head, err)
	}
	return client, authority.Raw, hello, nil
}

// gpusToJoin decides what of this machine's GPUs comes into the pool.
func gpusToJoin(out io.Writer, s nodeapi.Settings, f *joinFlags) (mode string, simulated int, err error) {
	mode = f.gpus
	switch mode {
	case "":
		situation := nvidiadriver.Look("/")
		switch {
		case s.GPUs == config.GPUsSimulated:
			mode = config.GPUsSimulated
		case situation.Usable():
			mode = config.GPUsReal
		default:
			mode = config.GPUsNone
			if len(situation.Cards) > 0 {
				fmt.Fprintf(out, "  ! %s %s It joins without GPUs; once the driver works (`gpulab driver` says how), run "+
					"`gpulab leave` and join again.\n", situation.Seen(), situation.Means())
			}
		}
	default:
		if err := checkGPUsFlag(mode); err != nil {
			return "", 0, err
		}
	}
	if mode != config.GPUsNone && s.GPUs != config.GPUsNone && s.GPUs != mode {
		return "", 0, fail(exitPreflight, "the pool's GPUs are %s, and this machine's would be %s; all of a pool are of "+
			"one kind: say --gpus %[1]s or --gpus none", s.GPUs, mode)
	}
	if mode == config.GPUsSimulated {
		simulated = s.SimulatedGPUs
		if f.simulated != 0 {
			simulated = f.simulated
		}
		if simulated < 1 || simulated > 16 {
			return "", 0, fail(exitUsage, "--simulated-gpus is %d; it may be 1 to 16", simulated)
		}
	}
	return mode, simulated, nil
}

// fitsPool looks whether this machine can be what the pool wants.
func fitsPool(ctx context.Context, out io.Writer, file *joinedFile) error {
	s, cfg := file.Settings, file.config()
	for _, text := range []string{s.ClusterCIDR, s.ServiceCIDR} {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("the lab's networks: %w", err)
		}
		if taken, ok, err := embedk8s.Overlap(network); err != nil {
			return err
		} else if ok {
			return fail(exitPreflight, "the lab's pods are in %s, and this machine has an address in or a route to %s; give "+
				"that network up here, or run `gpulab init` anew on the head while this machine's network is known there", network,
				taken)
		}
	}
	if s.Export != "" && s.Export != config.ExportNFS {
		return fail(exitPreflight, "the lab's homes come to its machines in a way that this version of gpulab does not "+
			"know (%s); install a newer one here", s.Export)
	}
	if s.Shared != "" {
		if err := lookAtShared(s.Shared, s.Mark); errors.Is(err, errUnmarked) {
			return fail(exitPreflight, "%w", missingStorage(s.Shared))
		} else if err != nil {
			return fail(exitPreflight, "%w", err)
		}
	}
	opts := doctor.Options{
		DataDir: cfg.DataDir, GPUMode: string(cfg.GPUs), Ports: []int{kubeletPort}, MountNFS: s.Export != "",
		Encrypt: s.Encrypt,
	}
	if cfg.Network.Proxy != "" {
		opts.Proxies = []string{cfg.Network.Proxy}
	}
	return preflightFor(ctx, out, opts, "gpulab join")
}

// startAgent makes sure that an agent of this very program and settings runs.
func startAgent(ctx context.Context, a *app, file *joinedFile) (bool, error) {
	inputs, err := file.inputs()
	if err != nil {
		return false, err
	}
	return startDaemon(ctx, a, file.config(), inputs)
}

// followJoin shows the agent's stages until the machine is in the pool.
func followJoin(ctx context.Context, a *app, out io.Writer) (changed bool, err error) {
	view := newStageView(out)
	defer view.close()
	var last ctl.Boot
	first := true
	before := map[string]bool{}
	err = a.client().WatchBoot(ctx, func(b ctl.Boot) error {
		for _, s := range b.Stages {
			if first {
				before[s.Name] = s.State == "done"
			}
		}
		first, last = false, b
		view.show(b)
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return false, fail(exitFailure, "interrupted; gpulab goes on in the background. Run `gpulab join` again to watch "+
			"it, or `gpulab leave` to take it off")
	case last.Failed != "":
		return false, fmt.Errorf("%s; gpulab tries again by itself, and `gpulab join` watches it",
			strings.TrimRight(last.Failed, ".;"))
	case err != nil:
		return false, fmt.Errorf("%w; see `gpulab logs` and run `gpulab join` again", err)
	case !last.Ready:
		return false, errors.New("gpulab ended while it was starting; see `gpulab logs`, and run `gpulab join` again")
	}
	for _, s := range last.Stages {
		changed = changed || s.Changed && !before[s.Name]
	}
	return changed, nil
}
