package webui

// Routes lists method and path pattern of every route, for the tests that walk
// them all.
func (s *Server) Routes() [][2]string {
	var list [][2]string
	for _, rt := range s.table() {
		list = append(list, [2]string{rt.method, rt.path})
	}
	return list
}

// OpenStreams counts the live connections.
func (s *Server) OpenStreams() int {
	s.streams.mu.Lock()
	defer s.streams.mu.Unlock()
	return len(s.streams.open)
}

// SetSignUp lets anybody ask for an account, or not; before the first request.
func (s *Server) SetSignUp(on bool) { s.cfg.SignUp = on }

// SetSignIn adds outside identity providers; before the first request.
func (s *Server) SetSignIn(providers SignIn) { s.cfg.SignIn = providers }

// Happened is what pages say of when something was.
var Happened = happened

// KnownBrowser is what a request says of its browser.
var KnownBrowser = knownBrowser
