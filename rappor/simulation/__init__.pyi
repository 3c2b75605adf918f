from rappor.simulation.collection import simulate_counts as simulate_counts
from rappor.simulation.collection import simulate_reports as simulate_reports
from rappor.simulation.parts import simulate_parts as simulate_parts
from rappor.simulation.population import Population as Population
from rappor.simulation.population import english_words as english_words
from rappor.simulation.repeated import simulate_days as simulate_days
from rappor.simulation.repeated import simulate_repeated as simulate_repeated
