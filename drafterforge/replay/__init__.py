"""What drafters, trees and selectors would have done on recorded answers."""
