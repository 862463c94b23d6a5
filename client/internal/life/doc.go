// Package life is how far a session has come: it goes on, or a broker that is being stopped
// decides on it, or it is over. All parts of the client look at it, session moves it on.
package life
