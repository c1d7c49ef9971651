"""Science prompts: phenomena, comparisons, why questions, calculations with units, quizzes, experiments and their data."""

# Templates and word lists keep one entry a line.
# ruff: noqa: E501

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from drafterforge.data.grammars.base import Writer, an, capital, crossed, fill, framed, lines, rows

# field | something to explain, as it stands in the middle of a sentence
TOPICS = lines("""
physics | the Doppler effect
physics | static electricity
physics | electromagnetic induction
physics | total internal reflection
physics | the refraction of light
physics | the photoelectric effect
physics | radioactive decay
physics | nuclear fission
physics | terminal velocity
physics | the conservation of momentum
physics | the conservation of energy
physics | simple harmonic motion
physics | resonance
physics | the interference of waves
physics | the polarization of light
physics | convection currents
physics | thermal expansion
physics | specific heat capacity
physics | latent heat
physics | entropy
physics | the buoyant force
physics | surface tension
physics | capillary action
physics | Bernoulli's principle
physics | centripetal force
physics | torque
physics | friction
physics | elastic and inelastic collisions
physics | electrical resistance
physics | alternating current
physics | transformers
physics | semiconductors
physics | superconductivity
physics | time dilation
physics | wave-particle duality
physics | the uncertainty principle
physics | quantum tunneling
physics | lasers
physics | standing waves on a string
physics | heat pumps
chemistry | covalent bonding
chemistry | ionic bonding
chemistry | hydrogen bonding
chemistry | electronegativity
chemistry | the periodic trends in atomic radius
chemistry | ionization energy
chemistry | isotopes
chemistry | oxidation and reduction
chemistry | galvanic cells
chemistry | electrolysis
chemistry | the corrosion of iron
chemistry | acid-base titration
chemistry | buffer solutions
chemistry | the pH scale
chemistry | chemical equilibrium
chemistry | Le Chatelier's principle
chemistry | activation energy
chemistry | catalysis
chemistry | reaction rates
chemistry | exothermic reactions
chemistry | Hess's law
chemistry | limiting reactants
chemistry | the mole
chemistry | empirical and molecular formulas
chemistry | solubility
chemistry | precipitation reactions
chemistry | fractional distillation
chemistry | paper chromatography
chemistry | polymers
chemistry | functional groups in organic molecules
chemistry | structural isomers
chemistry | the cleaning action of soap
chemistry | the ideal gas law
chemistry | vapor pressure
chemistry | freezing point depression
chemistry | allotropes of carbon
chemistry | the noble gases
chemistry | transition metals and their colors
chemistry | combustion
chemistry | water hardness
biology | photosynthesis
biology | cellular respiration
biology | fermentation
biology | osmosis
biology | active transport
biology | mitosis
biology | meiosis
biology | DNA replication
biology | transcription and translation
biology | point mutations
biology | Mendelian inheritance
biology | sex-linked traits
biology | natural selection
biology | genetic drift
biology | speciation
biology | convergent evolution
biology | mimicry
biology | symbiosis
biology | food webs
biology | the nitrogen cycle
biology | ecological succession
biology | keystone species
biology | carrying capacity
biology | enzyme inhibition
biology | homeostasis
biology | the action potential of a neuron
biology | muscle contraction
biology | gas exchange in the lungs
biology | the immune response to a virus
biology | blood clotting
biology | the uptake of water by plants
biology | phototropism
biology | pollination
biology | circadian rhythms
biology | hibernation
biology | echolocation
biology | epigenetics
biology | stem cells
biology | the polymerase chain reaction
biology | gene editing with CRISPR
astronomy | the phases of the Moon
astronomy | lunar eclipses
astronomy | the seasons
astronomy | the life cycle of a star
astronomy | supernovae
astronomy | neutron stars
astronomy | black holes and their event horizon
astronomy | white dwarfs
astronomy | red shift
astronomy | the expansion of the universe
astronomy | the cosmic microwave background
astronomy | dark matter
astronomy | gravitational lensing
astronomy | gravitational waves
astronomy | Kepler's laws
astronomy | tidal locking
astronomy | the Roche limit
astronomy | Lagrange points
astronomy | the habitable zone
astronomy | exoplanet transits
astronomy | the Hertzsprung-Russell diagram
astronomy | stellar parallax
astronomy | nuclear fusion in the Sun
astronomy | sunspots
astronomy | auroras
astronomy | meteor showers
astronomy | comet tails
astronomy | the rings of Saturn
astronomy | gravity assists
astronomy | geostationary orbits
earth science | plate tectonics
earth science | subduction zones
earth science | sea-floor spreading
earth science | hot spots and island chains
earth science | earthquake waves
earth science | volcanic eruptions
earth science | the rock cycle
earth science | weathering and erosion
earth science | the formation of caves
earth science | the formation of fossils
earth science | radiometric dating
earth science | the movement of glaciers
earth science | river deltas
earth science | the water cycle
earth science | groundwater and aquifers
earth science | ocean currents
earth science | El Niño
earth science | the Coriolis effect
earth science | cold fronts
earth science | the formation of thunderstorms
earth science | hurricanes
earth science | tornadoes
earth science | the jet stream
earth science | the ozone layer
earth science | the greenhouse effect
earth science | the carbon cycle
earth science | ocean acidification
earth science | Earth's magnetic field
earth science | ocean tides
earth science | soil formation
""")

TOPIC_KINDS = {
    "explain": (
        "Please explain {topic}.",
        "In {field}, what is meant by {topic}, and why is it important?",
        "Can you explain {topic} in simple terms?",
        "Explain {topic} to a {age}-year-old.",
        "Give a {level} explanation of {topic}.",
        "Describe {topic} in one paragraph.",
        "What should a {student} know about {topic}?",
        "what is meant by {topic}? short answer pls",
    ),
    "mechanism": (
        "Walk me through {topic} step by step.",
        "What are the main ideas one needs to understand {topic}? Put them in a sensible order.",
        "Describe {topic} in terms of cause and effect: what leads to what?",
        "I know the textbook definition, but what is really behind {topic}?",
        "Break {topic} down into {n} steps or parts and explain each in one sentence.",
    ),
    "evidence": (
        "What is the experimental or observational evidence for what we know about {topic}?",
        "How did scientists come to understand {topic}? Name the key observations.",
        "Which measurement would convince a skeptic of our understanding of {topic}?",
        "Who contributed most to our understanding of {topic}, and what did they do?",
    ),
    "misconceptions": (
        "What do students most often get wrong about {topic}?",
        "List {n} common misconceptions about {topic} and correct each of them.",
        "I keep mixing things up when it comes to {topic}. Which mistakes should I watch out for?",
    ),
    "everyday": (
        "Where do I meet {topic} outside the classroom? Give {n} examples.",
        "What practical use does it have to understand {topic}?",
        "Give me an everyday analogy for {topic}, and tell me where the analogy breaks down.",
        "Why should people who are not scientists care about {topic}?",
    ),
    "teach": (
        "Write {n} multiple-choice questions on {topic}, with answers.",
        "Make {n} flash cards about {topic}: a question on the front, a short answer on the back.",
        "Plan a {minutes}-minute lesson on {topic} for a {student}.",
        "Suggest a simple classroom demonstration of {topic}, with a list of materials.",
        "Write an exam question about {topic} that tests understanding rather than memory, and a model answer.",
        "Summarize {topic} in {n} bullet points for my revision notes.",
    ),
}

# A question as people type it.
QUESTIONS = lines("""
Why does ice float on water?
Why is the sky blue but the sunset red?
Why do metals feel colder than wood at the same temperature?
Why does a spoon look bent in a glass of water?
Why do we see lightning before we hear thunder?
Why does a balloon stick to the wall after you rub it on your hair?
Why do astronauts float inside a space station?
Why does hot air rise?
Why does salt melt ice on roads?
Why does bread dough rise?
Why do apples turn brown after they are cut?
Why do leaves change color in autumn?
Why do onions make us cry?
Why does milk turn sour?
Why does a fizzy drink go flat?
Why does soap remove grease when water alone does not?
Why is the sea salty while rivers are not?
Why do some metals rust and others do not?
Why does a candle need oxygen to burn?
Why does helium make a voice sound higher?
Why is it harder to cook pasta on a high mountain?
Why do ears pop in an airplane?
Why does the Moon always show us the same face?
Why is Pluto no longer counted as a planet?
Why does Venus have a hotter surface than Mercury?
Why do stars twinkle while planets hardly do?
Why is Mars red?
Why do comets have tails that point away from the Sun?
Why are there leap years?
Why is it colder at the poles than at the equator?
Why do we have seasons if the distance to the Sun hardly changes?
Why do hurricanes lose strength over land?
Why do deserts get so cold at night?
Why are some volcanoes explosive and others gentle?
Why do earthquakes happen mostly along certain lines on the map?
Why is the center of the Earth still hot?
Why do rivers bend?
Why is the deep sea dark?
Why does it smell after rain on dry soil?
Why do cats have vertical pupils?
Why do birds fly in a V shape?
Why can geckos walk on ceilings?
Why do whales have to come up for air although they live in water?
Why do plants look green?
Why do roots grow downward?
Why do we yawn?
Why do muscles hurt the day after exercise?
Why do we shiver when we are cold?
Why does the heart beat faster during exercise?
Why do identical twins have different fingerprints?
Why are antibiotics useless against viruses?
Why can some people not digest milk?
Why is blood red?
Why do bees dance?
Why do flamingos have pink feathers?
Why are there so few large animals in the desert?
Why does a mirror seem to swap left and right but not up and down?
Why do power lines carry such high voltages?
Why do birds sit safely on power lines?
Why does a bicycle stay upright when it moves?
Why does a cup of tea cool faster when you blow on it?
Why do we use carbon-14 and not another isotope to date old wood?
Why is diamond hard and graphite soft if both are carbon?
Why do fireworks have different colors?
Why does sugar dissolve faster in hot tea?
Why do noble gases hardly react?
Why is water a good solvent for salt but not for oil?
Why does the pressure in a tire rise on a long drive?
Why is a vacuum flask good at keeping drinks both hot and cold?
Why does food cook faster in a pressure cooker?
How do noise-canceling headphones work?
How do fish breathe under water?
How do bats find insects in the dark?
How do trees move water to leaves a hundred meters above the ground?
How do we know what the inside of the Earth looks like?
How do we know the age of the universe?
How do we measure the distance to a star?
How do astronomers find planets around other stars?
How does a microwave oven heat food?
How does a refrigerator get cold?
How does a compass work?
How does a solar cell turn light into electricity?
How does a touch screen notice a finger?
How does an induction stove heat a pan without getting hot itself?
How does an MRI scanner see inside the body?
How does GPS find out where I am?
How does a nuclear power plant make electricity?
How does a battery store energy?
How does a vaccine train the immune system?
How does yeast make alcohol?
How does the eye focus on near and distant things?
How does the ear tell where a sound comes from?
How does DNA fit into a cell nucleus?
How do cells know when to stop dividing?
How do migrating birds find their way?
How do corals build reefs?
How do clouds form?
How do snowflakes get their shape?
How do mountains form?
How are limestone caves made?
How do tsunamis start and why are they hard to see at sea?
How do glaciers carve valleys?
How do scientists predict the weather?
How do tree rings tell us about past climates?
How do oil and natural gas form?
How do diamonds form and how do they reach the surface?
How did the Moon form?
How will the Sun end its life?
How do black holes grow?
How do spacecraft steer where there is no air?
How fast does light travel, and how was this measured for the first time?
How far away is the horizon, and what does it depend on?
How many cells does a human body have, roughly, and how can that be estimated?
Can sound travel through space?
Can plants grow without soil?
Can lightning strike the same place twice?
Can anything escape from a black hole?
Can water be liquid below zero degrees Celsius?
Can metals burn?
Can two parents with brown eyes have a child with blue eyes?
Do heavier objects fall faster?
Do plants breathe at night?
Do all mammals give birth to live young?
Does the Sun move?
Does cold water boil faster than warm water?
Is glass a solid or a liquid?
Is fire a plasma?
Is a tomato a fruit or a vegetable from the point of view of a botanist?
Is a virus alive?
Is there gravity on the Moon?
Is there any place on Earth without life?
What would happen if the Earth stopped spinning?
What would happen if all bees disappeared?
What would happen to the tides without the Moon?
What would happen if we drilled a tunnel through the Earth and jumped in?
What would a day on Jupiter be like?
What happens to a star that runs out of fuel?
What happens when an acid meets a base?
What happens inside a caterpillar while it turns into a butterfly?
What is the difference in pressure between the sea surface and ten meters below?
What makes some rocks magnetic?
What makes a rainbow curved?
What limits the height of a mountain on Earth?
What limits the size of insects?
What is the coldest possible temperature, and why can nothing be colder?
""")

PAIRS = lines("""
speed | velocity
mass | weight
heat | temperature
series circuits | parallel circuits
alternating current | direct current
conductors | insulators
scalars | vectors
kinetic energy | potential energy
transverse waves | longitudinal waves
reflection | refraction
convex lenses | concave lenses
nuclear fission | nuclear fusion
alpha radiation | beta radiation
conduction | convection
static friction | kinetic friction
power | energy
electric fields | magnetic fields
real images | virtual images
special relativity | general relativity
classical mechanics | quantum mechanics
ionic bonds | covalent bonds
acids | bases
strong acids | concentrated acids
atoms | molecules
elements | compounds
mixtures | pure substances
physical changes | chemical changes
oxidation | reduction
endothermic reactions | exothermic reactions
metals | nonmetals
isotopes | ions
solutions | suspensions
alkanes | alkenes
evaporation | boiling
melting | dissolving
empirical formulas | molecular formulas
molarity | molality
the anode | the cathode
diamond | graphite
polar molecules | nonpolar molecules
mitosis | meiosis
DNA | RNA
plant cells | animal cells
prokaryotes | eukaryotes
bacteria | viruses
arteries | veins
diffusion | osmosis
aerobic respiration | anaerobic respiration
photosynthesis | respiration
genotype | phenotype
dominant alleles | recessive alleles
natural selection | artificial selection
homologous structures | analogous structures
parasitism | mutualism
herbivores | omnivores
monocots | dicots
innate immunity | adaptive immunity
the sympathetic nervous system | the parasympathetic nervous system
transcription | translation
primary succession | secondary succession
ectotherms | endotherms
xylem | phloem
planets | dwarf planets
comets | asteroids
meteors | meteorites
solar eclipses | lunar eclipses
neutron stars | white dwarfs
spiral galaxies | elliptical galaxies
rocky planets | gas giants
astronomy | astrology
a sidereal day | a solar day
dark matter | dark energy
refracting telescopes | reflecting telescopes
weather | climate
igneous rocks | sedimentary rocks
magma | lava
erosion | weathering
minerals | rocks
continental crust | oceanic crust
the lithosphere | the asthenosphere
hurricanes | tornadoes
fog | clouds
stalactites | stalagmites
P waves | S waves
shield volcanoes | stratovolcanoes
renewable resources | nonrenewable resources
convergent boundaries | divergent boundaries
relative dating | absolute dating
spring tides | neap tides
hypotheses | theories
accuracy | precision
independent variables | dependent variables
correlation | causation
systematic errors | random errors
""")
PAIR_KINDS = {
    "difference": (
        "What is the difference between {first} and {second}?",
        "Explain how {first} differ from {second}, with an example of each.",
        "Compare {first} and {second} in a table with {n} rows.",
        "difference between {first} and {second}",
        "My teacher says that many people confuse {first} with {second}. Can you clear that up?",
    ),
    "relation": (
        "How are {first} and {second} related?",
        "Name {n} things that {first} and {second} have in common, and {n} in which they differ.",
        "Give me a memory aid so that I do not mix up {first} and {second}.",
        "Write a short dialogue in which a student asks a teacher about {first} and {second}.",
    ),
}
SINGULAR_PAIR = ("Explain how {first} differ from", "Explain the difference between {first} and")

# Statements to judge; some are right.
CLAIMS = lines("""
Humans use only ten percent of their brains
The Great Wall of China can be seen from the Moon with the naked eye
Seasons are caused by the changing distance between Earth and Sun
A penny dropped from a skyscraper could kill a pedestrian
Blood in the veins is blue
Lightning never strikes the same place twice
Bats are blind
Goldfish have a memory of three seconds
Chameleons change color only for camouflage
Sugar makes children hyperactive
Water always boils at 100 degrees Celsius
Objects in orbit are beyond the reach of gravity
There is a permanently dark side of the Moon
The Sun is a yellow ball of fire
All deserts are hot
Diamonds are made from coal
Evolution means that the strongest survive
Humans descend from chimpanzees
Plants only breathe out oxygen
Microwaves make food radioactive
Glass flows slowly over centuries
Heavier objects fall faster than light ones in a vacuum
Sound travels faster in water than in air
Sound travels faster in steel than in water
Hot water can freeze faster than cold water
Mercury is the hottest planet
Venus rotates in the opposite direction to most planets
A day on Venus is longer than its year
Most of the oxygen we breathe comes from rain forests
Antibiotics help against the common cold
Vaccines work by exposing the immune system to a harmless part or form of a germ
Sharks do not get cancer
Spiders are insects
Whales are fish
Mushrooms are plants
Bananas are slightly radioactive
Pure water conducts electricity well
Metals expand when they are heated
An electric current is used up as it flows through a lamp
A vacuum sucks things in
Cold is something that flows into a house
The tongue has separate zones for sweet, sour, salty and bitter
Hair and nails keep growing after death
Identical twins have exactly the same DNA throughout life
Earth's magnetic poles have swapped places in the past
The North Star is the brightest star in the sky
Stars are still there although we see them as they were in the past
Raindrops are shaped like tears
Earthquakes can be predicted to the day
Carbon dioxide is the most common gas in the atmosphere
The ozone hole is the main cause of global warming
Ice ages were caused by changes in Earth's orbit, among other things
Acids are always more dangerous than bases
Atoms are mostly empty space
Electrons circle the nucleus like planets around the Sun
Gold can be made from other elements
Camels store water in their humps
Ostriches bury their heads in the sand
Octopuses have three hearts
Trees communicate through networks of fungi
""")
CLAIM_ASKS = (
    '"{topic}." Is that true?',
    "Is it true or a myth: {topic}? Explain with evidence.",
    "True or false? {topic}. Give the reason in two or three sentences.",
    'A classmate claims: "{topic}." How would you answer?',
    "Fact-check this sentence for a science blog: {topic}.",
    "I read somewhere the following: {topic}. Is it right, wrong, or more complicated?",
    "Judge the statement and correct it if necessary: {topic}.",
)

# table: what is asked about a row | then the rows: name | what makes it the only right answer
FACTS = {
    "organelle": (
        ("Which part of a cell {fact}?", "In a eukaryotic cell, which structure {fact}?"),
        "nucleus | holds most of the genetic material",
        "mitochondrion | releases energy from sugar as ATP",
        "ribosome | assembles amino acids into proteins",
        "chloroplast | captures light to make sugar",
        "Golgi apparatus | sorts and packs proteins for transport",
        "lysosome | breaks down waste with digestive enzymes",
        "cell membrane | controls what enters and leaves the cell",
        "rough endoplasmic reticulum | folds newly made proteins and carries attached ribosomes",
        "cell wall | gives a plant cell its rigid outer shape",
        "vacuole | stores water and keeps a plant cell firm",
    ),
    "planet": (
        ("Which planet of the solar system {fact}?", "Which of these planets {fact}?"),
        "Mercury | completes an orbit around the Sun in the shortest time",
        "Venus | has the hottest surface, under thick clouds of sulfuric acid",
        "Earth | has liquid oceans on its surface",
        "Mars | has the largest volcano, Olympus Mons",
        "Jupiter | has the largest mass",
        "Saturn | would float on water because of its low mean density",
        "Uranus | rotates almost on its side",
        "Neptune | is the farthest from the Sun",
    ),
    "element": (
        ("Which element {fact}?", "Name the element that {fact}."),
        "hydrogen | is the most abundant in the universe",
        "helium | was discovered in the spectrum of the Sun",
        "carbon | forms the backbone of organic molecules",
        "nitrogen | makes up about 78 percent of the air",
        "oxygen | is the most abundant in Earth's crust by mass",
        "sodium | reacts violently with water and colors a flame yellow",
        "chlorine | is a greenish gas used to disinfect swimming pools",
        "iron | is the central atom of hemoglobin",
        "copper | is a reddish metal used for electric wires",
        "mercury | is a metal that is liquid at room temperature",
        "silicon | is the basis of most computer chips",
        "calcium | gives bones and teeth their hardness",
        "uranium | is used as fuel in most nuclear reactors",
    ),
    "layer": (
        ("Which layer of the Earth or its atmosphere {fact}?",),
        "inner core | is solid iron and nickel",
        "outer core | is liquid metal whose flow makes the magnetic field",
        "mantle | makes up most of the planet's volume",
        "crust | is the thin rocky shell we live on",
        "troposphere | contains nearly all weather",
        "stratosphere | contains the ozone layer",
        "mesosphere | is where most meteors burn up",
        "thermosphere | is where auroras glow and the space station orbits",
    ),
    "unit": (
        ("Which SI unit {fact}?", "In physics, which unit {fact}?"),
        "newton | measures force",
        "joule | measures energy",
        "watt | measures power",
        "pascal | measures pressure",
        "ohm | measures electrical resistance",
        "volt | measures electric potential difference",
        "ampere | measures electric current",
        "coulomb | measures electric charge",
        "hertz | measures frequency",
        "kelvin | measures temperature",
        "tesla | measures magnetic flux density",
        "farad | measures capacitance",
    ),
    "rock": (
        ("Which rock {fact}?", "Geologists name rocks by origin. Which one {fact}?"),
        "granite | cools slowly deep underground and has large crystals",
        "basalt | is dark, fine-grained and covers most of the ocean floor",
        "obsidian | is volcanic glass that cooled too fast for crystals",
        "pumice | is volcanic and so full of bubbles that it floats",
        "sandstone | consists of cemented grains of sand",
        "limestone | is mostly calcium carbonate from shells and skeletons",
        "shale | is compacted mud that splits into thin layers",
        "marble | forms when limestone is heated and squeezed",
        "slate | forms from shale under moderate pressure",
        "gneiss | shows bands of light and dark minerals",
    ),
    "organ": (
        ("Which organ of the human body {fact}?", "Which of the following organs {fact}?"),
        "liver | makes bile and breaks down toxins",
        "pancreas | releases insulin",
        "kidney | filters blood to form urine",
        "lung | exchanges oxygen and carbon dioxide with the blood",
        "heart | pumps blood through two circuits",
        "small intestine | absorbs most nutrients",
        "stomach | starts to digest proteins in strong acid",
        "large intestine | reclaims water from what is left of the food",
        "spleen | filters old red blood cells out of the blood",
        "thyroid gland | sets the pace of metabolism with hormones that contain iodine",
        "cerebellum | coordinates balance and fine movements",
    ),
    "animal group": (
        ("Which animals {fact}?", "Zoologists sort animals into groups. Which of them {fact}?"),
        "mammals | feed their young with milk",
        "birds | have feathers and hollow bones",
        "reptiles | have dry scales and mostly lay leathery eggs on land",
        "amphibians | start life in water with gills and usually grow lungs later",
        "insects | have six legs and three body segments",
        "arachnids | have eight legs and no antennae",
        "echinoderms | move with tube feet and often show fivefold symmetry",
        "cnidarians | catch prey with stinging cells",
        "crustaceans | have two pairs of antennae and mostly live in water",
        "cephalopods | have arms with suckers and can squirt ink",
    ),
    "biome": (
        ("Which biome {fact}?", "A traveler describes a region. Which biome {fact}?"),
        "tundra | has permafrost and no trees",
        "taiga | is dominated by conifers and long winters",
        "tropical rain forest | has the highest number of species and rain all year",
        "savanna | has tall grass, scattered trees and a dry season",
        "desert | receives less than about 250 mm of rain a year",
        "temperate deciduous forest | loses its leaves every autumn",
        "coral reef | is built by animals in warm, shallow sea water",
        "estuary | mixes fresh and salt water",
    ),
    "scientist's idea": (
        ("Who {fact}?", "Which scientist {fact}?"),
        "Isaac Newton | stated three laws of motion and a law of universal gravitation",
        "Albert Einstein | explained gravity as the curvature of spacetime",
        "Marie Curie | discovered polonium and radium",
        "Charles Darwin | proposed evolution by natural selection in 1859",
        "Gregor Mendel | found rules of inheritance by crossing peas",
        "Dmitri Mendeleev | arranged the elements in a table and predicted missing ones",
        "Alfred Wegener | proposed that continents drift",
        "Louis Pasteur | disproved spontaneous generation with swan-necked flasks",
        "Ernest Rutherford | found the atomic nucleus by firing alpha particles at gold foil",
        "Edwin Hubble | showed that distant galaxies recede faster",
        "Johannes Kepler | found that planets move in ellipses",
        "Michael Faraday | discovered electromagnetic induction",
        "Vera Rubin | measured galaxy rotation that pointed to dark matter",
        "Alexander Fleming | noticed that a mold killed bacteria",
        "Rosalind Franklin | took the X-ray images that helped reveal the double helix",
    ),
    "process": (
        ("Which process {fact}?", "What do we call the process that {fact}?"),
        "condensation | turns water vapor into droplets",
        "sublimation | turns a solid directly into a gas",
        "evaporation | turns a liquid into a gas below its boiling point",
        "transpiration | releases water vapor from leaves",
        "nitrogen fixation | turns nitrogen gas into a form that plants can use",
        "decomposition | returns nutrients of dead matter to the soil",
        "photosynthesis | stores the energy of light in sugar",
        "fermentation | releases energy from sugar without oxygen",
        "electrolysis | splits a compound with an electric current",
        "distillation | separates liquids by their boiling points",
        "filtration | separates an insoluble solid from a liquid",
        "neutralization | turns an acid and a base into a salt and water",
    ),
}
QUIZ = (
    "{ask}\n\n{options}",
    "{ask}\n{options}\n\nExplain why the other options are wrong.",
    "Choose the correct answer.\n\nQuestion: {ask}\n{options}\nAnswer:",
    "Multiple choice: {ask}\n{options}\nAnswer with the letter and one sentence of explanation.",
    "This was in my {field} quiz and I was not sure: {ask} The options were {inline}.",
    "{ask}\n\n{options}\n\nThink it through before you pick one.",
    "{ask} {inline_cap}?",
    "{ask} Answer in one sentence and add a fact that helps to remember it.",
)

# kind, question, situations, numbers. A situation may bring values for the slots of EXTRA_SLOTS: one, several with
# slashes between them, or a range a..b.
CALCULATIONS = (
    ("average speed", "{who} covers {n} km in {m} minutes. What is the average speed in km/h and in m/s?", "A cyclist|16..30; A marathon runner|12..19; A tram|18..32; A delivery van|25..70; A rowing boat|8..16; A migrating swan|40..75; A hiker|4..6; A high-speed train|180..290", {"m": range(15, 100, 5), "n": lambda v, m, **_: max(1, v * m // 60)}),
    ("acceleration", "{who} speeds up from {n} m/s to {m} m/s in {t} s. What is the acceleration?", "A motorcycle; A sprinter on a bike; A train; A lift cabin in a tower; A drone", {"n": range(0, 8), "m": range(9, 30), "t": range(2, 15)}),
    ("force", "What net force is needed to accelerate {who} of {n} kg at {a} m/s²?", "a shopping cart|15..60; a small car|800..1300; a sled|8..40; a toy rocket|1..3; a motorboat|400..1500; an elevator|500..1400", {"a": (0.5, 1.2, 2, 2.5, 3)}),
    ("free fall", "{who} is dropped from a height of {n} m. Ignoring air resistance, how long does it fall and how fast is it on impact?", "A stone; A wrench; A steel ball; A coconut; A full water bottle", {"n": range(3, 90)}),
    ("kinetic energy", "How much kinetic energy does {who} with a mass of {m} kg have at {n} m/s?", "a soccer ball|0.4/0.43/0.45; a bowling ball|5..7; a running dog|9..40; a sailing dinghy|130..200; a skateboarder|45..80; a meteoroid fragment|2..30", {"n": range(3, 16)}),
    ("potential energy", "{who} with a mass of {m} kg is lifted by {n} m. By how much does its gravitational potential energy grow?", "A piano|180..300; A bag of cement|25/40/50; A bucket of water|8..15; A suitcase|10..28; A crate of apples|12..30; An elevator cabin|450..900", {"n": range(2, 25)}),
    ("momentum", "{who} of {m} kg moves at {n} m/s. What is its momentum, and what constant force stops it in {t} s?", "A railcar|12000/18000/25000; A curling stone|18/19/20; A shopping cart|15..45; A barge|40000/90000; A skater|45..90; A forklift|2000..4000", {"n": (0.5, 1, 1.5, 2, 3), "t": range(2, 20)}),
    ("density", "{who} has a mass of {m} g and a volume of {v} cm³. What is its density, and does it float on water?", "A block of wood|45..75; A pebble|240..300; A plastic cube|90..140; A piece of cork|20..26; A metal nut|770..880; A candle|88..94", {"v": range(10, 260, 5), "m": lambda d, v, **_: max(1, d * v // 100)}),
    ("pressure", "{who} presses on the ground with a force of {n} N over an area of {a} cm². How large is the pressure in pascals?", "A chair leg|4/5/9; A stiletto heel|0.5/1/1.5; A snowshoe|1200/1600; A tent peg|0.2/0.3; A tractor wheel|900/2000; A dancer on tiptoe|8/12", {"n": range(140, 900, 20)}),
    ("Ohm's law", "{who} is connected to {n} V and carries {a} A. What are its resistance and its power?", "A heating wire; A lamp; A small motor; A toaster; A resistor in a school kit", {"n": (6, 9, 12, 24, 120, 230), "a": (0.2, 0.5, 0.8, 1.5, 2, 4)}),
    ("series and parallel", "Two resistors of {n} Ω and {m} Ω in {who} are connected first in series and then in parallel. What is the total resistance in each case?", "a lab circuit; a model railway; a torch; a dimmer", {"n": range(4, 60), "m": range(6, 90, 3)}),
    ("energy cost", "{who} of {n} W runs {h} hours a day. How many kWh does it use in {d} days, and what does that cost at {c} cents per kWh?", "A refrigerator; A desk lamp; A gaming computer; A fan; An aquarium pump", {"n": range(20, 600, 20), "h": range(2, 20), "d": (7, 30, 365), "c": range(18, 45)}),
    ("wavelength", "{who} has a frequency of {n} Hz. What is its wavelength in air, if sound travels at 340 m/s?", "A tuning fork; A ship's horn; A singer's note; A piano string; A whistle", {"n": range(80, 3000, 20)}),
    ("echo", "{who} hears the echo of a shout after {t} s. How far away is the reflecting wall at a speed of sound of 340 m/s?", "A hiker in a canyon; A child under a bridge; A surveyor in a quarry; A sailor near a cliff", {"t": (0.6, 0.8, 1.2, 1.5, 1.8, 2.4, 3)}),
    ("heating", "How much heat is needed to warm {m} kg of {who} from {n} °C to {k} °C? Use a specific heat capacity of {c} J/(kg·K).", "water in a kettle|4180; oil in a pan|2000; soup|3900; milk|3930; honey|2400", {"m": (0.2, 0.3, 0.5, 1, 1.5, 2), "n": range(5, 22), "k": range(40, 99)}),
    ("mixing water", "{n} g of water at {a} °C is poured into {m} g of water at {b} °C in {who}. What is the final temperature if no heat is lost?", "a bucket; a thermos; a bathtub model; a calorimeter", {"n": range(100, 900, 50), "m": range(100, 900, 50), "a": range(60, 95), "b": range(5, 25)}),
    ("lens", "{who} with a focal length of {f} cm forms an image of an object {d} cm away. Where is the image, and how is it magnified?", "A magnifying glass; A camera lens; A projector lens; A reading lens", {"f": range(5, 16), "d": range(18, 80)}),
    ("work and power", "{who} does {n} kJ of work in {t} s. What is the power in watts?", "A crane; A pump; A winch; A hoist; A conveyor belt", {"n": range(2, 60), "t": range(4, 90, 2)}),
    ("moles", "How many moles are in {m} g of {who}? Show how you find the molar mass.", "water; table salt, NaCl; carbon dioxide; glucose, C6H12O6; calcium carbonate; ammonia; sulfuric acid; ethanol; iron(III) oxide; methane; sodium hydroxide; copper(II) sulfate", {"m": range(5, 250)}),
    ("molarity", "{m} g of {who} is dissolved to make {v} mL of solution. What is the molar concentration?", "sodium chloride; sodium hydroxide; glucose; potassium nitrate; calcium chloride; copper(II) sulfate", {"m": range(2, 60), "v": (100, 200, 250, 500, 750, 1000)}),
    ("dilution", "How much {c} mol/L {who} do I need to prepare {v} mL of a {d} mol/L solution? Describe the steps safely.", "hydrochloric acid; sodium hydroxide; nitric acid; saline; ammonia solution; glucose solution", {"c": (1, 2, 3, 6), "v": (50, 100, 250, 500, 1000), "d": (0.05, 0.1, 0.2, 0.25, 0.5)}),
    ("titration", "{v} mL of {who} of unknown concentration is neutralized by {w} mL of {c} mol/L {other}. What is the concentration?", "hydrochloric acid|NaOH; nitric acid|KOH; acetic acid|NaOH; sodium hydroxide solution|HCl; sulfuric acid|NaOH", {"v": (10, 20, 25, 50), "w": range(8, 40), "c": (0.05, 0.1, 0.15, 0.2, 0.5)}),
    ("ideal gas", "What volume does {n} mol of {who} take up at {t} °C and {p} kPa?", "oxygen; nitrogen; helium; carbon dioxide; hydrogen; methane", {"n": (0.2, 0.5, 1, 1.5, 2, 3), "t": range(0, 60, 5), "p": range(80, 140, 5)}),
    ("balancing", "Balance the equation: {who}. Then say which kind of reaction it is.", "Fe + O2 -> Fe2O3; CH4 + O2 -> CO2 + H2O; Al + HCl -> AlCl3 + H2; N2 + H2 -> NH3; C3H8 + O2 -> CO2 + H2O; KClO3 -> KCl + O2; Na + H2O -> NaOH + H2; CaCO3 + HCl -> CaCl2 + CO2 + H2O; Mg + O2 -> MgO; C6H12O6 + O2 -> CO2 + H2O; Zn + AgNO3 -> Zn(NO3)2 + Ag; P4 + O2 -> P4O10; C2H5OH + O2 -> CO2 + H2O; Pb(NO3)2 + KI -> PbI2 + KNO3; Al2O3 + C -> Al + CO2; NH3 + O2 -> NO + H2O; H2O2 -> H2O + O2; Fe2O3 + CO -> Fe + CO2", {}),
    ("combustion yield", "How many grams of carbon dioxide form when {m} g of {who} burns completely?", "methane; propane; ethanol; glucose; octane; carbon; candle wax, taken as C25H52", {"m": range(5, 120)}),
    ("pH", "What is the pH of {who} with a concentration of {c} mol/L at 25 °C?", "hydrochloric acid; sodium hydroxide solution; nitric acid; potassium hydroxide solution", {"c": (0.1, 0.01, 0.001, 0.05, 0.02, 0.005, 0.25)}),
    ("percent composition", "What percentage of the mass of {who} is oxygen?", "water; carbon dioxide; glucose; sulfuric acid; calcium carbonate; potassium permanganate; ethanol; iron(III) oxide", {}),
    ("half-life", "A sample contains {m} mg of {who}, whose half-life is {h}. How much is left after {k} half-lives, and how long is that?", "carbon-14|5,730 years; iodine-131|8 days; cobalt-60|5.3 years; strontium-90|29 years; radon-222|3.8 days; technetium-99m|6 hours; tritium|12.3 years", {"m": (8, 16, 40, 64, 120, 200), "k": (2, 3, 4, 5)}),
    ("Punnett square", "In {who}, {trait} is dominant. Two heterozygous parents are crossed. What share of {n} offspring is expected to show the recessive trait? Draw the Punnett square.", "pea plants|purple flower color; guinea pigs|black fur; fruit flies|red eye color; tomatoes|red fruit; mice|brown fur; rabbits|short hair", {"n": range(16, 200, 4)}),
    ("test cross", "A breeder does not know whether a plant or animal with the dominant form ({trait}, in {who}) is homozygous. Which cross tells, and what outcomes are expected among {n} offspring?", "peas|round seeds; dogs|black coat; chickens|pea comb; corn|yellow kernels; cattle|absence of horns", {"n": range(8, 60, 4)}),
    ("population growth", "A population of {n} {who} grows by {p} percent a {period}. How many are there after {k} {period}s, and why can this not go on forever?", "rabbits|year; water fleas|day; duckweed plants|day; deer|year; yeast cells|hour", {"n": range(20, 500, 20), "p": range(4, 40, 2), "k": range(2, 8)}),
    ("bacteria doubling", "A culture of {who} starts with {n} cells and doubles every {m} minutes. How many cells are there after {h} hours?", "E. coli; lactic acid bacteria; soil bacteria; Salmonella", {"n": (100, 200, 500, 1000), "m": (15, 20, 30, 40, 60), "h": range(2, 9)}),
    ("magnification", "{who} is {n} µm long and appears {m} mm long in a micrograph. What is the magnification?", "A red blood cell|7/8; A paramecium|180..250; An onion cell|200..320; A bacterium|2/3; A pollen grain|25..60; A chloroplast|5/6", {"m": range(5, 90)}),
    ("energy pyramid", "Producers in {who} store {n} kJ per square meter and year. If 10 percent passes on at every level, how much reaches the {k} consumers?", "a meadow; a lake; a kelp forest; a savanna; an oak wood", {"n": range(4000, 40000, 1000), "k": ("primary", "secondary", "tertiary")}),
    ("mark and recapture", "Ecologists mark {n} {who}. Later they catch {m}, of which {k} are marked. Estimate the population size and name two assumptions.", "snails; trout; field mice; beetles; newts; butterflies", {"n": range(30, 120, 5), "m": range(40, 130, 5), "k": range(6, 25)}),
    ("light travel time", "{who} is {n} million km away from us. How many minutes does its light take to reach Earth?", "The Sun|147..152; Mars|56..400; Jupiter|590..960; Venus|40..260; A passing asteroid|2..60; Saturn|1200..1650", {}),
    ("weight elsewhere", "{who} weighs {n} N on Earth. What would it weigh on {place}, where gravity is {g} m/s²?", "An astronaut|the Moon|1.6; A rover|Mars|3.7; A sample box|Mercury|3.7; A probe|the cloud tops of Jupiter|24.8; A space suit|the Moon|1.6", {"n": range(200, 1500, 10)}),
    ("parallax", "{who} shows a parallax of {p} arcseconds. How far away is it in parsecs and in light years?", "A red dwarf; A nearby giant star; A white dwarf; A Sun-like star", {"p": (0.05, 0.08, 0.1, 0.2, 0.25, 0.4, 0.5)}),
    ("Kepler's third law", "{who} orbits a Sun-like star at {a} astronomical units. How long is its year?", "A dwarf planet; A newly found exoplanet; An asteroid; A comet with a nearly circular orbit", {"a": (0.25, 0.5, 1.5, 2, 2.8, 4, 9, 16, 39)}),
    ("telescope", "A telescope has an objective with a focal length of {f} mm and an eyepiece of {e} mm. What is its magnification, and what does {who} look like through it compared with the naked eye?", "the Moon; Jupiter; a double star; Saturn", {"f": range(400, 1600, 50), "e": (4, 6, 10, 20, 25)}),
    ("plate motion", "{who} moves at {n} cm a year. How far does it travel in {m} million years, and how do we measure such a speed?", "The Pacific Plate; The Indian Plate; Australia; Iceland's western half", {"n": range(2, 11), "m": (1, 5, 10, 20, 50)}),
    ("earthquake distance", "At {who} the S wave arrives {t} s after the P wave. With 6 km/s for P and 3.5 km/s for S waves, how far away was the earthquake?", "a station in Chile; a mountain observatory; a school seismometer; an island station", {"t": range(6, 90, 2)}),
    ("map gradient", "{who} drops {n} m over {m} km. What is its gradient in percent and in meters per kilometer?", "A mountain stream|120..700|3..15; A lowland river|5..60|20..90; A ski slope|200..900|1..4; A valley road|40..300|4..20; A glacier|200..900|3..12", {}),
    ("relative humidity", "Air in {who} holds {n} g of water vapor per cubic meter and could hold {m} g at its temperature. What is the relative humidity, and what happens if it cools?", "a greenhouse; a cellar; a tropical valley; a bathroom; a classroom", {"n": range(4, 15), "m": range(16, 30)}),
    ("sedimentation", "A layer of {who} grows by {n} mm a century. How old is a fossil found {m} m below the surface, and what could make this estimate wrong?", "lake mud; peat; deep-sea ooze; river silt", {"n": (1, 2, 5, 8, 20), "m": (0.4, 0.8, 1.5, 2, 3.5)}),
    ("rainfall volume", "{n} mm of rain fall on {who} of {m} square meters. How many liters of water is that?", "a flat roof; a garden; a parking lot; a football field; a vineyard", {"n": range(3, 60), "m": range(40, 7000, 60)}),
)  # fmt: skip
EXTRA_SLOTS = {
    "average speed": ("v",),
    "force": ("n",),
    "kinetic energy": ("m",),
    "potential energy": ("m",),
    "momentum": ("m",),
    "density": ("d",),
    "pressure": ("a",),
    "heating": ("c",),
    "magnification": ("n",),
    "light travel time": ("n",),
    "map gradient": ("n", "m"),
    "titration": ("other",),
    "half-life": ("h",),
    "Punnett square": ("trait",),
    "test cross": ("trait",),
    "population growth": ("period",),
    "weight elsewhere": ("place", "g"),
}

# subject | what is varied | what is measured | unit | levels of what is varied | lowest and highest result, and the shape of the curve
EXPERIMENTS = lines("""
cress seedlings | the hours of light a day | height after ten days | cm | 0, 4, 8, 12, 16 | 1.2 8.5 up
bean plants | the amount of fertilizer | number of leaves after three weeks | leaves | 0 g, 2 g, 4 g, 8 g | 5 14 peak
tomato plants | the salt content of the water | mass of the fruit | g | 0 %, 0.2 %, 0.5 %, 1 % | 40 310 down
yeast in sugar water | the temperature of the water | volume of gas in 20 minutes | mL | 10 °C, 25 °C, 40 °C, 60 °C | 3 48 peak
pondweed in a beaker | the distance of the lamp | bubbles a minute | bubbles | 10 cm, 20 cm, 30 cm, 40 cm | 4 52 down
potato strips | the concentration of sugar solution | change of mass | % | 0 M, 0.2 M, 0.4 M, 0.6 M | -12.5 14.5 down
raw liver in hydrogen peroxide | the pH of the mixture | height of the foam | cm | 3, 5, 7, 9, 11 | 0.5 7.5 peak
starch with saliva | the temperature of the test tube | time until the starch is gone | min | 5 °C, 20 °C, 37 °C, 55 °C | 3 21 dip
wood lice in a choice chamber | the humidity of the chamber | animals found on that side after 15 minutes | animals | dry, damp, wet | 2 17 up
mealworms | the food they are offered | mass gained in two weeks | mg | oats, bran, flour, apple | 15 96 mixed
duckweed in jars | the nitrate content | number of fronds after a week | fronds | 0 mg/L, 5 mg/L, 10 mg/L, 50 mg/L | 11 74 up
bread slices | the storage conditions | area covered by mold after five days | cm² | fridge, dry box, moist box, window sill | 0 38 mixed
volunteers on a treadmill | the slope | pulse after three minutes | beats/min | 0 %, 3 %, 6 %, 9 % | 88 161 up
students doing a memory test | the hours of sleep the night before | words recalled of 30 | words | 4, 6, 8, 9 | 9 24 up
drivers in a simulator | the time spent awake | reaction time | ms | 2 h, 8 h, 16 h, 20 h | 230 460 up
a pendulum | the length of the string | time for ten swings | s | 25 cm, 50 cm, 75 cm, 100 cm | 10 20 up
a toy car on a ramp | the height of the ramp | distance rolled on carpet | cm | 10 cm, 20 cm, 30 cm, 40 cm | 45 210 up
a rubber band | the mass hung on it | length of the band | cm | 0 g, 100 g, 200 g, 300 g | 8 21 up
a steel spring | the load | extension | mm | 1 N, 2 N, 3 N, 4 N | 11 47 up
paper helicopters | the length of the blades | time of fall from the stairs | s | 4 cm, 6 cm, 8 cm, 10 cm | 1.1 2.9 up
a bouncing tennis ball | the height of the drop | height of the first bounce | cm | 40 cm, 80 cm, 120 cm, 160 cm | 20 88 up
a wooden block on a board | the surface of the board | force needed to start it sliding | N | glass, sandpaper, felt, wet wood | 1.4 6.8 mixed
cups of hot tea | the material of the cup | temperature after 20 minutes | °C | steel, glass, paper, foam | 41 66 mixed
ice cubes | the color of the cloth under them | time to melt in the sun | min | white, yellow, blue, black | 18 41 down
a copper wire | the length of the wire | resistance | Ω | 1 m, 2 m, 3 m, 4 m | 0.3 1.6 up
an electromagnet | the number of turns of the coil | paper clips lifted | clips | 10, 20, 40, 80 | 2 31 up
a solar cell | the angle to the lamp | voltage | V | 0°, 30°, 60°, 80° | 0.1 0.6 down
a lemon battery | the metal of the second electrode | voltage | V | zinc, iron, tin, magnesium | 0.3 1.6 mixed
a loudspeaker at the end of a hall | the distance from it | sound level | dB | 1 m, 2 m, 4 m, 8 m | 58 82 down
a beaker of water | the temperature of the water | salt that dissolves in 100 g of water | g | 10 °C, 30 °C, 50 °C, 70 °C | 35.7 38.0 up
magnesium ribbon in acid | the concentration of the acid | time until the metal is gone | s | 0.5 M, 1 M, 1.5 M, 2 M | 14 95 down
antacid tablets | the size of the pieces | time to dissolve | s | whole, halves, quarters, powder | 12 74 down
marble chips in acid | the temperature of the acid | mass lost in two minutes | g | 15 °C, 25 °C, 35 °C, 45 °C | 0.2 1.9 up
iron nails | the liquid they stand in | rust after a week, on a scale from 0 to 10 | points | oil, tap water, salt water, boiled water | 0 9 mixed
soap films | the amount of glycerin | time until the film bursts | s | 0 %, 5 %, 10 %, 20 % | 4 63 peak
cabbage indicator | the household liquid added | pH read from the color chart | units | vinegar, milk, soap water, baking soda | 3 9 mixed
candles under jars | the volume of the jar | time until the flame goes out | s | 0.25 L, 0.5 L, 1 L, 2 L | 8 71 up
crystals of alum | the speed of cooling | length of the largest crystal | mm | minutes, an hour, a day, a week | 1 24 up
milk with vinegar | the amount of vinegar | mass of the curd | g | 2 mL, 5 mL, 10 mL, 20 mL | 3 29 up
popcorn kernels | the moisture of the kernels | share that pops | % | 8 %, 11 %, 14 %, 17 % | 35 96 peak
paper towels | the brand | water absorbed | mL | brand A, brand B, brand C, brand D | 14 39 mixed
a sand box with a hose | the slope of the sand | depth of the channel after ten minutes | cm | 2°, 5°, 10°, 15° | 0.8 6.4 up
soil columns | the type of soil | time for water to drain through | min | gravel, sand, loam, clay | 1 58 up
a stream table | the flow of water | sediment carried away | g | 0.5 L/min, 1 L/min, 2 L/min, 3 L/min | 22 340 up
craters in flour | the height from which a marble falls | diameter of the crater | mm | 20 cm, 40 cm, 80 cm, 120 cm | 24 61 up
two jars of air in the sun | the carbon dioxide content | temperature rise in an hour | °C | ordinary air, enriched air | 4.1 7.3 up
limestone pieces | the acidity of the rain water | mass lost in a month | mg | pH 7, pH 6, pH 5, pH 4 | 2 47 up
a cloud in a bottle | the amount of smoke particles | time until the cloud clears | s | none, one match, two matches | 0 35 up
rooftop thermometers | the color of the roof | temperature at noon | °C | planted, white, gray, black | 28 63 up
lichens on tree trunks | the distance from a main road | share of the bark covered | % | 10 m, 50 m, 200 m, 1 km | 3 58 up
a creek | the distance below a farm drain | nitrate content | mg/L | 0 m, 100 m, 500 m, 1 km | 4 39 down
moths at light traps | the color of the lamp | moths caught in a night | moths | red, yellow, white, ultraviolet | 3 88 up
garden birds | the kind of seed | visits to the feeder in an hour | visits | sunflower, millet, peanut, mixed | 6 47 mixed
earthworms | the mulch on the soil | worms counted in a square meter | worms | none, straw, leaves, compost | 12 93 up
a school telescope | the exposure time | stars visible in the picture | stars | 1 s, 5 s, 15 s, 30 s | 14 260 up
""")
EXPERIMENT_KINDS = {
    "design": (
        "Design an experiment with {subject} to find out how {factor} affects the {measure}.",
        "I want to test whether {factor} makes a difference for {subject}. I can measure the {measure}. How should I plan this?",
        "Help me with my science fair project on {subject}: does {factor} matter? Give me a hypothesis, materials and steps.",
        "Plan a fair test with {subject}. Vary only {factor}, and record the {measure}.",
    ),
    "variables": (
        "A class studies {subject}. They change {factor} and record the {measure}. Name the independent variable, the dependent variable and {n} variables that must be kept constant.",
        "In an experiment with {subject} we vary {factor}. What would be a suitable control, and how many repeats are needed when the {measure} is recorded?",
        "Write a testable hypothesis and a null hypothesis for an experiment with {subject}: we vary {factor} and record the {measure}.",
    ),
    "data": (
        "We tested {subject} and changed {factor}. These are our results for the {measure}:\n\n{table}\n\nWhat can we conclude, and what can we not?",
        "{table}\n\nThe table is from an experiment with {subject}. Describe what it shows and suggest an explanation.",
        "Summarize the following experiment in two sentences. A group examined {subject}. They varied {factor} and measured the {measure}, each {repeats} times. The means were: {inline}.",
        "Here is my lab data on {subject} (varied: {factor}, measured: {measure} in {unit}): {inline}. Which kind of graph should I draw, and what goes on each axis?",
        "A student writes: I took {subject}, changed {factor} and measured the {measure} once for each setting. I got {inline}. List {n} weaknesses of this experiment and how to improve it.",
        "Write the discussion section of a lab report. Subject: {subject}. Varied: {factor}. Measured: {measure}. Results: {inline}. One of the values may be an outlier.",
    ),
    "errors": (
        "Which sources of error should I expect when I measure the {measure} in an experiment with {subject}, changing {factor}?",
        "Two groups worked with {subject}, varied {factor} and got different values for the {measure}. What could be the reasons?",
        "What safety rules and precautions matter in an experiment with {subject} that tests the role of {factor}?",
    ),
}

CURIOUS = (
    *("",) * 8,
    "I have {a_field} test tomorrow.",
    "My son asked me this at breakfast.",
    "I am reviewing for the entrance exam.",
    "I am a {student}.",
    "This came up in class today.",
    "Hi! Quick question.",
    "I am writing a short article for the school paper.",
)
TEACHING = (
    *("",) * 6,
    "I teach {field} at a high school.",
    "I am a tutor for {field}.",
    "I am making a revision booklet for my study group.",
    "I need material for {a_field} class tomorrow.",
)
LEVEL = (
    *("",) * 8,
    "Keep it under {limit} words.",
    "Use short sentences.",
    "Be as precise as you can.",
    "Stick to the essentials.",
    "Give one example.",
    "Define every technical term.",
    "Finish with a one-sentence takeaway.",
)
WORKING = (
    *("",) * 5,
    "Show your work.",
    "Give the units at every step.",
    "Round to two significant figures.",
    "First name the formula, then put in the numbers.",
    "Explain each step for a beginner.",
    "Check whether the result is plausible.",
)
GREETINGS = (*("",) * 6, "Can you help me with this one?", "Question from my worksheet:", "Please solve:")
DRAWN = {
    "n": (3, 4, 5, 6, 8),
    "age": (6, 7, 10, 12, 14),
    "level": ("short", "detailed", "clear", "precise", "college-level", "two-minute"),
    "student": ("middle school student", "high school student", "first-year college student", "home-schooled teenager"),
    "minutes": (15, 20, 30, 45),
    "limit": (60, 80, 100, 150, 200),
}


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every (kind, topic) pair with its writer."""
    for field, topic in rows(TOPICS):
        slots = {"topic": topic, "field": field, "a_field": an(field)}
        for kind, asks in TOPIC_KINDS.items():
            before = TEACHING if kind == "teach" else CURIOUS
            yield f"{kind}: {topic}", framed(asks, before, LEVEL, **slots, **DRAWN)
    for question in QUESTIONS:
        polite = framed((question,), CURIOUS, LEVEL, a_field="a science", **DRAWN)
        yield f"question: {question}", partial(write_question, question, polite)
    for kind, asks in PAIR_KINDS.items():
        for first, second in rows(PAIRS):
            plural = first.endswith("s") and not first.endswith(("ss", "sis", "ics"))
            fitting = asks if plural else [ask.replace(*SINGULAR_PAIR) for ask in asks]
            writer = framed(fitting, CURIOUS, LEVEL, first=first, second=second, a_field="a science", **DRAWN)
            yield f"{kind}: {first} and {second}", writer
    yield from crossed({"claim": CLAIM_ASKS}, CLAIMS, ("",), LEVEL, **DRAWN)
    for table, (asks, *facts) in FACTS.items():
        names = [name for name, _ in rows(facts)]
        for name, fact in rows(facts):
            yield f"quiz, {table}: {name}", partial(write_quiz, asks, table, name, fact, names)
    yield from calculations()
    for line in rows(EXPERIMENTS):
        for kind, asks in EXPERIMENT_KINDS.items():
            yield f"experiment, {kind}: {line[0]}", partial(write_experiment, asks, line)


def write_question(question: str, polite: Writer, rng: random.Random) -> str:
    """The question in a frame, or as typed in haste."""
    if rng.random() < 0.85:
        return polite(rng)
    hasty = question[0].lower() + question[1:].rstrip("?")
    return hasty + rng.choice(("", "?", "??", " - short answer", " (explain)", ", in simple words", " and why", " pls"))


def calculations() -> Iterator[tuple[str, Writer]]:
    """Each calculation in each of its situations."""
    for kind, ask, situations, numbers in CALCULATIONS:
        for situation in situations.split("; "):
            who, *more = situation.split("|")
            extra = dict(zip(EXTRA_SLOTS.get(kind, ()), map(choices, more), strict=True))
            slots = {"who": who, **extra, **numbers}
            yield f"calculation, {kind}: {who}", framed((ask,), GREETINGS, WORKING, **slots)


def choices(cell: str) -> str | list[str] | range:
    """What a cell offers: 5..9 is a range, 5/7 a choice, anything else a value."""
    if ".." in cell:
        low, high = cell.split("..")
        return range(int(low), int(high) + 1)
    return cell.split("/") if cell[0].isdigit() else cell


def write_quiz(asks: tuple[str, ...], table: str, name: str, fact: str, names: list[str], rng: random.Random) -> str:
    """A question about one row of a table; the wrong answers are other rows."""
    options = [name, *rng.sample([other for other in names if other != name], 3)]
    rng.shuffle(options)
    mark = rng.choice(("{}) ", "{}. ", "({}) "))
    listed = [mark.format(letter) + capital(option) for letter, option in zip("ABCD", options, strict=True)]
    inline = ", ".join(options[:3]) + f" or {options[3]}"
    return fill(
        rng,
        rng.choice(QUIZ),
        ask=rng.choice(asks).format(fact=fact),
        options="\n".join(listed),
        inline=inline,
        inline_cap=capital(inline),
        field="geography" if table in ("layer", "rock", "biome") else "science",
    )


def write_experiment(asks: tuple[str, ...], line: list[str], rng: random.Random) -> str:
    """A prompt about one experiment, with results where they are asked about."""
    subject, factor, measure, unit, levels, span = line
    *ends, shape = span.split()
    low, high = map(float, ends)
    steps = levels.split(", ")
    grid = sorted(low + (high - low) * (place + rng.random()) / len(steps) for place in range(len(steps)))
    if shape in ("down", "dip"):
        grid.reverse()
    if shape in ("peak", "dip"):  # the last value falls back
        grid[-2:] = [grid[-1], grid[0] + 0.4 * (grid[-2] - grid[0])]
    if shape == "mixed":
        rng.shuffle(grid)
    whole = low.is_integer() and high.is_integer() and high - low > 5
    values = [f"{value:.0f}" if whole else f"{value:.1f}" for value in grid]
    pairs = list(zip(steps, values, strict=True))
    return fill(
        rng,
        rng.choice(asks),
        subject=subject,
        factor=factor,
        measure=measure,
        unit=unit,
        table="\n".join(
            (
                f"| {factor.removeprefix('the ')} | {measure} ({unit}) |",
                "|---|---|",
                *(f"| {a} | {b} |" for a, b in pairs),
            )
        ),
        inline=", ".join(f"{b} {unit} at {a}" for a, b in pairs),
        repeats=(3, 4, 5, 6),
        n=(2, 3, 4),
    )
